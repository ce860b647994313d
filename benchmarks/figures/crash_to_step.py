"""crash_to_step: seconds from the crash of a model until the next step, on the only worker of a cluster.

A real cluster in two tiers trains the small GPT of the demo. In each round the worker's compute process gets SIGSEGV,
as from a bug in a model's own C code. The time until the next COMMIT contains the crash, the spawning of a new process,
the building of the job and a step. The figure is the longest of some rounds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from benchmarks.harness.watched_cluster import WatchedCluster, next_event
from protos import jobs_pb2

NAME = "crash_to_step"
BOUND_SECONDS = 2.0
ROUNDS = 9
CONFIG = "configs/training_configs/demo.yaml"


def run() -> bool:
    """Measure the rounds and report the longest."""
    seconds = asyncio.run(_measure())
    return report(
        NAME,
        max(seconds),
        BOUND_SECONDS,
        f"median {median(seconds):.2f} s, shortest {min(seconds):.2f} s, n = {len(seconds)}; building included",
        decimals=2,
    )


async def _measure() -> list[float]:
    settings = ("max_steps=100000", "eval_every=0", "model_save_interval=0")
    async with WatchedCluster(BUILD / NAME) as cluster:
        job = await cluster.submit(
            str(ROOT / CONFIG), *(word for each in settings for word in ("--set", each))
        )
        async with aclosing(cluster.client.watch(job)) as events:
            await next_event(events, lambda event: event.job.step > 1)
            return [await _crash(events, cluster) for _ in range(ROUNDS)]


async def _crash(events: AsyncIterator[jobs_pb2.JobEvent], cluster: WatchedCluster) -> float:
    began = time.perf_counter()
    for process in cluster.processes("worker"):
        os.kill(process, signal.SIGSEGV)
    died = await next_event(events, lambda event: "compute process died" in event.text)
    await next_event(events, lambda event: event.job.step > died.job.step)
    return time.perf_counter() - began
