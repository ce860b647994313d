"""edit_to_step: seconds from an edit of an own model until the first step with it, by `tiermesh submit --code`.

A real cluster in two tiers with one worker trains the model of docs/own-model.md. Each round edits the model, submits
it with a process of its own as a person does, and waits for the COMMIT of the first step. Nothing is restarted.
The figure is the longest of some rounds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from protos import jobs_pb2
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.runtime.launcher import DaemonProcess, kill_all
from services.transport.security import Security

NAME = "edit_to_step"
BOUND_SECONDS = 3.0
ROUNDS = 9
LIMIT_SECONDS = 60.0
_JOB = """
training_config: {data_path: text.txt, project_name: edited, max_steps: 2, batch_size: 4}
transformer_config: {model_type: "mixer:Mixer", max_sequence_length: 64, width: 64, layers: 2}
"""


def run() -> bool:
    """Measure the rounds and report the longest."""
    folder = BUILD / NAME
    shutil.rmtree(folder, ignore_errors=True)
    code = folder / "code"
    code.mkdir(parents=True)
    for page, name in (("new-op.md", "mixing.py"), ("own-model.md", "mixer.py")):
        text = (ROOT / "docs" / page).read_text()
        (code / name).write_text(text.split("```python\n")[1].split("```")[0])
    (folder / "text.txt").write_text("".join(f"{number} comes next.\n" for number in range(2000)))
    (folder / "job.yaml").write_text(_JOB)
    rounds = asyncio.run(_measure(folder, code / "mixer.py"))
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


async def _measure(folder: Path, model: Path) -> list[tuple[float, float]]:
    """Return for each round the seconds until the first step, and until the command has ended."""
    daemons: list[DaemonProcess] = []
    source = model.read_text()
    try:
        aggregator = DaemonProcess("aggregator", "aggregator", folder, ["--state-dir", str(folder / "state")])
        daemons.append(aggregator.start())
        await aggregator.wait_ready()
        options = ["--aggregator", aggregator.address, "--state-dir", str(folder / "worker"), "--accept-code"]
        daemons.append(DaemonProcess("worker", "worker", folder, options).start())
        await daemons[-1].wait_ready()
        async with JobsClient(AggregatorTarget(aggregator.address, Security(), LIMIT_SECONDS)) as client:
            return [
                await _round(client, aggregator.address, model, edited) for edited in _edits(source, ROUNDS)
            ]
    finally:
        kill_all(daemons)


def _edits(source: str, count: int) -> Iterator[str]:
    """Yield sources that compute differently."""
    for number in range(count):
        yield source.replace("initial_deviation=0.02", f"initial_deviation={0.02 + 0.001 * number}")


async def _round(client: JobsClient, address: str, model: Path, edited: str) -> tuple[float, float]:
    began = time.perf_counter()
    model.write_text(edited)
    words = ["submit", "job.yaml", "--code", "code", "--json", "--aggregator", address]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", *words],
        cwd=model.parent.parent,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    if done.returncode != 0:
        raise Failed(f"tiermesh {' '.join(words)}: {done.stderr.strip()}")
    submitted = time.perf_counter() - began
    first_step = await asyncio.wait_for(_follow(client, json.loads(done.stdout)["job"]), LIMIT_SECONDS)
    return first_step - began, submitted


async def _follow(client: JobsClient, job: str) -> float:
    """Wait for the end of a job; return when its first step was made."""
    first_step = 0.0
    async with aclosing(client.watch(job)) as events:
        async for event in events:
            if event.job.step >= 1 and not first_step:
                first_step = time.perf_counter()
            if event.job.state == jobs_pb2.FAILED:
                raise Failed(f"the job failed: {event.job.detail}")
    return first_step
