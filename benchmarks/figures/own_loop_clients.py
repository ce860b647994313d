"""own_loop_clients: CPU time that a step takes more while 50 clients follow its job by HTTP and one reads a history.

One cluster trains the GPT with 10.7 M parameters: an aggregator with the optimizer, a worker, and `tiermesh web`.
Blocks of steps with and without clients alternate. With them, 50 clients take the events of all steps, and another
one reads all columns of 1,000,000 steps of an ended job once. What counts is the CPU time of aggregator and worker,
since they make the steps. That of `tiermesh web` stands beside it; it may be on another host.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aggregator.history.columns import FIGURES, GENERATION, unknown_step
from aggregator.history.files import RecordFile
from aggregator.history.writer import MetricsHistory
from benchmarks.figures.compute_process import CONFIG, OVERRIDES
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.report import report
from benchmarks.harness.watched_cluster import LIMIT_SECONDS, WatchedCluster, next_event
from protos import jobs_pb2
from services.errors import Failed

NAME = "own_loop_clients"
BOUND = 1.03
CLIENTS = ROOT / "benchmarks" / "peers" / "http_clients.py"
HISTORY_STEPS = 1_000_000
WARM_UP_STEPS, STEPS = 3, 30
SMALL_JOB = {
    "training_config": {"model_type": "linear_regression", "batch_size": 8, "max_steps": 2},
    "linear_regression_config": {"num_features": 4, "num_targets": 2, "training_samples": 200},
    "device_config": {"backend": "emulator"},
}


@dataclass(frozen=True)
class Block:
    """CPU seconds of a step by daemon, over a block of them."""

    aggregator: float
    worker: float
    web: float

    @property
    def training(self) -> float:
        """CPU seconds of the daemons that make the steps."""
        return self.aggregator + self.worker


def run() -> bool:
    """Measure pairs of blocks, and report the ratio with its 95 % interval."""
    pairs = asyncio.run(_measure())
    middle, low, high = interval([on.training / off.training for off, on in pairs])
    sides = {"without": [off for off, _ in pairs], "with": [on for _, on in pairs]}
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.4f} - {high:.4f}, {PAIRS} pairs of blocks of {STEPS} steps in one set of daemons",
        *(
            f"CPU seconds of a step {name} clients: "
            + ", ".join(f"{role} {_mean(blocks, role):.3f}" for role in ("aggregator", "worker", "web"))
            for name, blocks in sides.items()
        ),
    )


def _mean(blocks: Sequence[Block], role: str) -> float:
    return statistics.fmean(getattr(each, role) for each in blocks)


async def _measure() -> list[tuple[Block, Block]]:
    """Return the pairs of blocks: without clients, and with them."""
    async with WatchedCluster(BUILD / NAME) as cluster:
        url, token = await cluster.serve_http()
        ended = await _make_history(cluster)
        words = [word for each in OVERRIDES for word in ("--set", each)]
        job = await cluster.submit(str(ROOT / CONFIG), *words)
        clients = await _Clients.start(url, token)
        try:
            async with aclosing(cluster.client.watch(job)) as events:
                await _steps(events, WARM_UP_STEPS)
                pairs = []
                for number in range(PAIRS):
                    blocks = {}
                    for with_clients in (True, False) if number % 2 else (False, True):
                        blocks[with_clients] = await _block(
                            cluster, events, clients, job, ended, with_clients
                        )
                    pairs.append((blocks[False], blocks[True]))
                return pairs
        finally:
            clients.stop()


async def _block(
    cluster: WatchedCluster,
    events: AsyncGenerator[jobs_pb2.JobEvent, None],
    clients: _Clients,
    job: str,
    ended: str,
    with_clients: bool,
) -> Block:
    if with_clients:
        await clients.order("follow", job)
    await _steps(events, 1)
    before = [cluster.cpu_seconds(role) for role in ("aggregator", "worker", "web")]
    reading = asyncio.create_task(clients.order("read", ended)) if with_clients else None
    await _steps(events, STEPS)
    after = [cluster.cpu_seconds(role) for role in ("aggregator", "worker", "web")]
    if reading is not None:
        if not reading.done():
            raise Failed(f"{NAME}: {STEPS} steps ended before {HISTORY_STEPS} steps of metrics were read")
        if int(reading.result()) != HISTORY_STEPS:
            raise Failed(f"{NAME}: {reading.result()} steps of metrics were read, expected {HISTORY_STEPS}")
        await clients.order("leave")
    return Block(*((late - early) / STEPS for early, late in zip(before, after, strict=True)))


async def _steps(events: AsyncGenerator[jobs_pb2.JobEvent, None], count: int) -> None:
    for _ in range(count):
        await next_event(events, lambda event: event.kind == "step")


async def _make_history(cluster: WatchedCluster) -> str:
    """Run a small job to its end, give it a history of many steps, and return its id."""
    config = cluster.folder / "small.json"
    config.write_text(json.dumps(SMALL_JOB))
    job = await cluster.submit(str(config))
    async with aclosing(cluster.client.watch(job)) as events:
        await next_event(events, lambda event: event.job.state == jobs_pb2.SUCCEEDED)
    await asyncio.to_thread(_write_history, cluster.folder / "aggregator" / "metrics", job)
    return job


def _write_history(folder: Path, job: str) -> None:
    history = MetricsHistory(folder)
    history.remove(job)
    (folder / job).mkdir()
    file = RecordFile(folder / job, 1, writable=True)
    file.begin(1)
    records = np.repeat(unknown_step(), HISTORY_STEPS - 1)
    records[GENERATION] = 1
    for number, name in enumerate(FIGURES):
        records[name] = np.random.default_rng(number).random(len(records))
    file.write(0, records)
    file.close()
    last = jobs_pb2.Job(id=job, state=jobs_pb2.RUNNING, step=HISTORY_STEPS, generation=1, loss=1.0)
    history.record(jobs_pb2.JobEvent(job=last, kind="step", seconds=1.0))  # which makes the summaries
    history.close()


class _Clients:
    """The clients' process, which carries out an order at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, url: str, token: str) -> _Clients:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, str(CLIENTS), url, token, stdin=pipe, stdout=pipe
            )
        )

    async def order(self, *words: str) -> str:
        """Give an order, and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), LIMIT_SECONDS)
        if not answer:
            raise Failed(f"{NAME}: the clients have ended at the order {words[0]}")
        return answer.decode().strip()

    def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
