"""crash_to_step: seconds from the crash of a model until the next step, on the only worker of a cluster.

A real cluster in two tiers trains the small GPT of the demo. In each round the worker's compute process gets SIGSEGV,
as from a bug in a model's own C code. The time until the next COMMIT contains the crash, the spawning of a new process,
the building of the job and a step. The figure is the longest of some rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
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

NAME = "crash_to_step"
BOUND_SECONDS = 2.0
ROUNDS = 9
LIMIT_SECONDS = 60.0
CONFIG = "configs/training_configs/demo.yaml"


def run() -> bool:
    """Measure the rounds and report the longest."""
    folder = BUILD / NAME
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = asyncio.run(_measure(folder))
    return report(
        NAME,
        max(seconds),
        BOUND_SECONDS,
        f"median {median(seconds):.2f} s, shortest {min(seconds):.2f} s, n = {len(seconds)}; building included",
        decimals=2,
    )


async def _measure(folder: Path) -> list[float]:
    daemons: list[DaemonProcess] = []
    try:
        aggregator = DaemonProcess("aggregator", "aggregator", folder, ["--state-dir", str(folder / "state")])
        daemons.append(aggregator.start())
        await aggregator.wait_ready()
        options = ["--aggregator", aggregator.address, "--state-dir", str(folder / "worker")]
        worker = DaemonProcess("worker", "worker", folder, options)
        daemons.append(worker.start())
        await worker.wait_ready()
        async with JobsClient(AggregatorTarget(aggregator.address, Security(), LIMIT_SECONDS)) as client:
            job = await asyncio.to_thread(_submit, aggregator.address)
            async with aclosing(client.watch(job)) as events:
                await _next(events, lambda event: event.job.step > 1)
                return [await _crash(events, worker.pid) for _ in range(ROUNDS)]
    finally:
        kill_all(daemons)


def _submit(address: str) -> str:
    words = ["submit", str(ROOT / CONFIG), "--aggregator", address]
    for setting in ("max_steps=100000", "eval_every=0", "model_save_interval=0"):
        words += ["--set", setting]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    if done.returncode != 0:
        raise Failed(f"tiermesh {' '.join(words)}: {done.stderr.strip()}")
    return str(json.loads(done.stdout)["job"])


async def _crash(events: AsyncIterator[jobs_pb2.JobEvent], worker: int) -> float:
    began = time.perf_counter()
    for children in Path(f"/proc/{worker}/task").glob("*/children"):
        for process in children.read_text().split():
            os.kill(int(process), signal.SIGSEGV)
    died = await _next(events, lambda event: "compute process died" in event.text)
    await _next(events, lambda event: event.job.step > died.job.step)
    return time.perf_counter() - began


async def _next(
    events: AsyncIterator[jobs_pb2.JobEvent], is_it: Callable[[jobs_pb2.JobEvent], bool]
) -> jobs_pb2.JobEvent:
    """Return the next event of a kind, for which all others are skipped."""
    while True:
        event = await asyncio.wait_for(anext(events), LIMIT_SECONDS)
        if event.job.state == jobs_pb2.FAILED:
            raise Failed(f"the job failed: {event.job.detail}")
        if is_it(event):
            return event
