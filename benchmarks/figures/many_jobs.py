"""many_jobs: growth of each role's memory and of `/metrics` over 10,000 small jobs, one after the other.

A real cluster with 3 tiers and one worker runs jobs of one step each: a linear regression on the emulator. A few jobs
wait in the queue, so that the cluster never idles. After 500 jobs everything that is kept for the newest jobs alone has
its final size. The figure is the growth from there to the end, of the role that grew most.

TIERMESH_BENCH_JOBS sets the number of jobs; the default is 10,000. The part that is left out is then a twentieth.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from protos import jobs_pb2
from services.config.load import load_job
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.runtime.launcher import DaemonProcess, kill_all
from services.transport.security import Security

NAME = "many_jobs"
JOBS = 10_000
QUEUED = 8
"""Jobs that are submitted ahead of the one that runs."""
SAMPLES = 40
BOUND_MEGABYTES = 4.0
BOUND_METRICS = 1.1
BOUND_LIST_SECONDS = 0.5
LIMIT_SECONDS = 60.0
"""Longest wait for an answer of the aggregator, and for one job."""
CONFIG = ROOT / "configs" / "training_configs" / "linear_regression.yaml"
SETTINGS = (
    "training_config.max_steps=1", "eval_every=0", "batch_size=32", "validation_batch_size=32",
    "multihost_config.num_workers=1",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """Memory and metrics of the cluster at one moment.

    Attributes:
        jobs: number of jobs that have ended.
        memory_bytes: resident memory of each daemon, by name.
        metrics_bytes: size of each daemon's `/metrics`, by name.
    """

    jobs: int
    memory_bytes: Mapping[str, int]
    metrics_bytes: Mapping[str, int]


def run() -> bool:
    """Run the jobs, and report what grew most."""
    count = int(os.environ.get("TIERMESH_BENCH_JOBS", JOBS))
    samples, seconds, list_seconds = asyncio.run(_measure(count))
    settled = [sample for sample in samples if sample.jobs >= count // 20]
    memory = {name: grown_bytes(settled, name) / 1e6 for name in settled[0].memory_bytes}
    metrics = {
        name: settled[-1].metrics_bytes[name] / settled[0].metrics_bytes[name]
        for name in settled[0].metrics_bytes
    }
    kept = [
        report(
            f"{NAME}_memory_growth_megabytes",
            max(memory.values()),
            BOUND_MEGABYTES,
            *(
                f"{name}: {settled[0].memory_bytes[name] / 1e6:.1f} MB after {settled[0].jobs} jobs, "
                f"{settled[-1].memory_bytes[name] / 1e6:.1f} MB after {settled[-1].jobs}; growth {growth:+.2f} MB"
                for name, growth in memory.items()
            ),
            f"{count} jobs in {seconds:.0f} s, {count / seconds:.1f} a second",
            decimals=2,
        ),
        report(
            f"{NAME}_metrics_growth",
            max(metrics.values()),
            BOUND_METRICS,
            *(f"{name}: {settled[-1].metrics_bytes[name]} bytes of /metrics at the end" for name in metrics),
        ),
        report(
            f"{NAME}_list_seconds",
            median(list_seconds),
            BOUND_LIST_SECONDS,
            f"`tiermesh jobs`, the whole process, n = {len(list_seconds)}, longest {max(list_seconds):.2f} s",
        ),
    ]
    return all(kept)


def grown_bytes(samples: list[Sample], name: str) -> float:
    """Return by how much a daemon's memory grew: the median of the last quarter over that of the first."""
    sizes = [sample.memory_bytes[name] for sample in samples]
    quarter = max(1, len(sizes) // 4)
    return median(sizes[-quarter:]) - median(sizes[:quarter])


async def _measure(count: int) -> tuple[list[Sample], float, list[float]]:
    """Return the samples, the seconds that all jobs took, and the seconds of some calls of `tiermesh jobs`."""
    spec_json = load_job(CONFIG, SETTINGS)[0].to_json()
    async with _cluster(BUILD / NAME) as daemons:
        target = AggregatorTarget(daemons["aggregator"].address, Security(), LIMIT_SECONDS)
        async with JobsClient(target) as client:
            samples = []
            queued = deque([await _submit(client, spec_json) for _ in range(min(QUEUED, count))])
            started = time.monotonic()
            for ended in range(1, count + 1):
                await asyncio.wait_for(_await_success(client, queued.popleft()), LIMIT_SECONDS)
                if ended + len(queued) < count:
                    queued.append(await _submit(client, spec_json))
                if ended % max(1, count // SAMPLES) == 0:
                    samples.append(_sample(ended, daemons))
            seconds = time.monotonic() - started
        return samples, seconds, [_list_jobs(daemons["aggregator"]) for _ in range(5)]


async def _submit(client: JobsClient, spec_json: str) -> str:
    return (await client.submit("small", spec_json)).id


async def _await_success(client: JobsClient, job: str) -> None:
    state = jobs_pb2.QUEUED
    detail = ""
    async for event in client.watch(job):
        state, detail = event.job.state, event.job.detail
    if state != jobs_pb2.SUCCEEDED:
        raise Failed(f"job {job} is {jobs_pb2.JobState.Name(state).lower()}: {detail}")


@asynccontextmanager
async def _cluster(folder: Path) -> AsyncIterator[dict[str, DaemonProcess]]:
    """Start the daemons in a new folder, and kill them when the context ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    daemons: dict[str, DaemonProcess] = {}

    async def start(role: str, *arguments: str) -> None:
        daemons[role] = DaemonProcess(role, role, folder, arguments).start()
        await daemons[role].wait_ready()

    try:
        await start("optimizer", "--state-dir", str(folder / "optimizer"))
        optimizer = daemons["optimizer"].address
        await start("aggregator", "--state-dir", str(folder / "aggregator"), "--optimizer", optimizer)
        await start(
            "worker", "--state-dir", str(folder / "worker"), "--aggregator", daemons["aggregator"].address
        )
        yield daemons
    finally:
        kill_all(daemons.values())


def _sample(jobs: int, daemons: Mapping[str, DaemonProcess]) -> Sample:
    page = os.sysconf("SC_PAGE_SIZE")
    return Sample(
        jobs,
        {
            name: page * int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
            for name, daemon in daemons.items()
        },
        {name: len(_read_metrics(daemon)) for name, daemon in daemons.items()},
    )


def _read_metrics(daemon: DaemonProcess) -> bytes:
    url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _list_jobs(aggregator: DaemonProcess) -> float:
    """Return the seconds of `tiermesh jobs`, from the start of its process to its end."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "jobs", "--aggregator", aggregator.address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"tiermesh jobs: {done.stderr.strip()}")
    return time.perf_counter() - started
