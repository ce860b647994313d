"""own_loop_cpu: CPU seconds of a step of an external worker and its PyTorch loop, over those of a worker of our own.

The model is the GPT with 10.7 M parameters on both sides, in 2 tiers with one worker. Passes are pauses of the same
length, and gradients are there already. So what counts is all else: weights in, gradients read, checked and sent, sums,
and the messages between daemon and process. Sets of daemons of both kinds alternate.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, aclosing
from pathlib import Path

from benchmarks.figures.own_loop_pytorch import SETTING
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.peer import SCRIPTS, peer_python
from benchmarks.harness.report import report
from benchmarks.harness.watched_cluster import WatchedCluster, next_event

NAME = "own_loop_cpu"
BOUND = 1.05
FORWARD_SECONDS = 0.05
WARM_UP_STEPS, STEPS = 3, 30
CONFIG = ROOT / "configs" / "training_configs" / "training_shakespeare_nanogpt_char.yaml"
COMMON = (
    "training_config.gradient_accumulation_steps=2",
    "max_steps=100000",
    "eval_every=0",
    "model_save_interval=0",
)
OWN = (*COMMON, "batch_size=4", "device_config.backend=emulator")
EXTERNAL = """
training_config: {project_name: own-loop, model_type: external, batch_size: 4, validation_batches: 0}
transformer_config: {max_sequence_length: 256}
"""


def run() -> bool:
    """Alternate sets of daemons of both kinds, and report the ratio with its 95 % interval."""
    pairs = [
        (asyncio.run(_measure_external(f"external-{pair}")), asyncio.run(_measure_own(f"own-{pair}")))
        for pair in range(PAIRS)
    ]
    middle, low, high = interval([external / own for external, own in pairs])
    external, own = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.3f} - {high:.3f}, {PAIRS} pairs of sets, {STEPS} steps each",
        f"CPU seconds of a step of a worker's processes: external {external:.3f}, own {own:.3f}",
    )


async def _measure_own(name: str) -> float:
    cluster = WatchedCluster(
        BUILD / NAME / name,
        worker_program=(str(SCRIPTS / "reading_step_worker.py"),),
        environment={"TIERMESH_BENCH_FORWARD_SECONDS": str(FORWARD_SECONDS)},
    )
    async with cluster:
        return await _cpu_seconds(cluster, await _submit(cluster, CONFIG, OWN), [])


async def _measure_external(name: str) -> float:
    with ExitStack() as stack:
        socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermesh-bench-"))) / "socket"
        options = ("--external", "--socket", str(socket))
        async with WatchedCluster(BUILD / NAME / name, worker_options=options) as cluster:
            config = cluster.folder / "job.yaml"
            config.write_text(EXTERNAL)
            job = await _submit(cluster, config, COMMON)
            setting = {**SETTING, "socket": str(socket), "job": job, "forward_seconds": FORWARD_SECONDS}
            loop = subprocess.Popen(
                [peer_python(), str(SCRIPTS / "own_loop.py"), "paced", json.dumps(setting)],
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'sdk'}:{ROOT}"},
            )
            try:
                return await _cpu_seconds(cluster, job, [loop.pid])
            finally:
                loop.kill()
                loop.wait()


async def _submit(cluster: WatchedCluster, config: Path, overrides: Iterable[str]) -> str:
    return await cluster.submit(str(config), *(word for each in overrides for word in ("--set", each)))


async def _cpu_seconds(cluster: WatchedCluster, job: str, others: list[int]) -> float:
    """Return the CPU seconds of a step of the worker, its children and other processes, after a warm-up."""
    async with aclosing(cluster.client.watch(job)) as events:
        first = await next_event(events, lambda event: event.job.step >= WARM_UP_STEPS)
        processes = [*cluster.worker_processes(), *others]
        before = _ticks(processes)
        last = await next_event(events, lambda event: event.job.step >= first.job.step + STEPS)
        ticks = _ticks(processes) - before
    return ticks / os.sysconf("SC_CLK_TCK") / (last.job.step - first.job.step)


def _ticks(processes: Iterable[int]) -> int:
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields)
