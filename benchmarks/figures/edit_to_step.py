"""edit_to_step: seconds from an edit of an own model until the first step with it, by `tiermesh submit --code`.

A real cluster in two tiers with one worker trains the model of docs/use/own-model.md. Each round edits the model,
submits it with a process of its own as a person does, and waits for the COMMIT of the first step. Nothing is
restarted. The figure is the longest of some rounds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from benchmarks.harness.watched_cluster import WatchedCluster, next_event
from protos import jobs_pb2

NAME = "edit_to_step"
BOUND_SECONDS = 3.0
ROUNDS = 9
_JOB = """
training_config: {data_path: text.txt, project_name: edited, max_steps: 2, batch_size: 4}
transformer_config: {model_type: "mixer:Mixer", max_sequence_length: 64, width: 64, layers: 2}
"""


def run() -> bool:
    """Measure the rounds and report the longest."""
    rounds = asyncio.run(_measure())
    seconds = [each[0] for each in rounds]
    return report(
        NAME,
        max(seconds),
        BOUND_SECONDS,
        f"median {median(seconds):.2f} s, shortest {min(seconds):.2f} s, n = {len(seconds)}; the first of a worker "
        f"{seconds[0]:.2f} s",
        f"until `tiermesh submit` has ended: median {median([each[1] for each in rounds]):.2f} s",
        decimals=2,
    )


async def _measure() -> list[tuple[float, float]]:
    """Return for each round the seconds until the first step, and until the command has ended."""
    async with WatchedCluster(BUILD / NAME, worker_options=("--accept-code",)) as cluster:
        code = cluster.folder / "code"
        code.mkdir()
        for page, name in (("internals/ops.md", "mixing.py"), ("use/own-model.md", "mixer.py")):
            text = (ROOT / "docs" / page).read_text()
            (code / name).write_text(text.split("```python\n")[1].split("```")[0])
        (cluster.folder / "text.txt").write_text("".join(f"{number} comes next.\n" for number in range(2000)))
        (cluster.folder / "job.yaml").write_text(_JOB)
        edits = _edits((code / "mixer.py").read_text(), ROUNDS)
        return [await _round(cluster, edited) for edited in edits]


def _edits(source: str, count: int) -> Iterator[str]:
    """Yield sources that compute differently."""
    for number in range(count):
        yield source.replace("initial_deviation=0.02", f"initial_deviation={0.02 + 0.001 * number}")


async def _round(cluster: WatchedCluster, edited: str) -> tuple[float, float]:
    began = time.perf_counter()
    (cluster.folder / "code" / "mixer.py").write_text(edited)
    job = await cluster.submit("job.yaml", "--code", "code")
    submitted = time.perf_counter() - began
    async with aclosing(cluster.client.watch(job)) as events:
        await next_event(events, lambda event: event.job.step >= 1)
        first_step = time.perf_counter() - began
        await next_event(events, lambda event: event.job.state == jobs_pb2.SUCCEEDED)
    return first_step, submitted
