"""compute_process: CPU time of a step with the worker's compute process, over that of a tree without one.

TIERMESH_BENCH_BEFORE names the other tree, a worktree of a commit before the compute process. Sets of daemons of both
trees alternate, by the Python of this one: 2 tiers, 1 worker, the GPT with 10.7 M parameters.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.report import Skipped, report
from benchmarks.harness.watched_cluster import WatchedCluster, next_event

NAME = "compute_process"
BOUND = 1.03
BEFORE = "TIERMESH_BENCH_BEFORE"
CONFIG = "configs/training_configs/training_shakespeare_nanogpt_char.yaml"
OVERRIDES = (
    "batch_size=4", "gradient_accumulation_steps=2", "max_steps=100000", "eval_every=0", "model_save_interval=0",
    "device_config.backend=emulator",
)  # fmt: skip
WARM_UP_STEPS, STEPS = 3, 15


@dataclass(frozen=True)
class Step:
    """Time of a step.

    Attributes:
        cpu_seconds: of all processes of the cluster.
        seconds: of the clock on the wall.
    """

    cpu_seconds: float
    seconds: float


def run() -> bool:
    """Alternate sets of daemons of both trees, and report the ratio with its 95 % interval."""
    if BEFORE not in os.environ:
        raise Skipped(f"set {BEFORE} to a worktree of a commit before the compute process")
    before, after = Path(os.environ[BEFORE]).resolve(), ROOT
    pairs = [
        (asyncio.run(_measure(before, f"before-{pair}")), asyncio.run(_measure(after, f"after-{pair}")))
        for pair in range(PAIRS)
    ]
    cpu, wall = (
        [getattr(late, name) / getattr(early, name) for early, late in pairs]
        for name in ("cpu_seconds", "seconds")
    )
    middle, low, high = interval(cpu)
    wall_middle, wall_low, wall_high = interval(wall)
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.3f} - {high:.3f}, {PAIRS} pairs of sets, {STEPS} steps each",
        f"CPU seconds of a step: before {_mean(early.cpu_seconds for early, _ in pairs):.3f}, "
        f"after {_mean(late.cpu_seconds for _, late in pairs):.3f}",
        f"seconds of a step: before {_mean(early.seconds for early, _ in pairs):.3f}, "
        f"after {_mean(late.seconds for _, late in pairs):.3f}; ratio {wall_middle:.3f} "
        f"({wall_low:.3f} - {wall_high:.3f}) on {os.cpu_count()} cores",
    )


_mean = statistics.fmean


async def _measure(tree: Path, name: str) -> Step:
    """Run a set of daemons of a tree, and return the time of a step after its warm-up."""
    async with WatchedCluster(BUILD / NAME / name, tree=tree) as cluster:
        job = await cluster.submit(
            str(tree / CONFIG), *(word for each in OVERRIDES for word in ("--set", each))
        )
        async with aclosing(cluster.client.watch(job)) as events:
            first = await next_event(events, lambda event: event.job.step >= WARM_UP_STEPS)
            cpu_seconds, seconds = cluster.cpu_seconds(), time.monotonic()
            last = await next_event(events, lambda event: event.job.step >= first.job.step + STEPS)
            steps = last.job.step - first.job.step
            return Step((cluster.cpu_seconds() - cpu_seconds) / steps, (time.monotonic() - seconds) / steps)
