"""Clients of `tiermesh web` in a process of their own, and the CPU time of the daemons by blocks of steps."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.watched_cluster import LIMIT_SECONDS, WatchedCluster, next_event
from protos import jobs_pb2
from services.errors import Failed

_DAEMONS = ("aggregator", "worker", "web")


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

    @classmethod
    def between(cls, before: Sequence[float], after: Sequence[float], steps: int) -> Block:
        """Return the block of some steps, from `cpu_by_daemon` before and after them."""
        return cls(*((late - early) / steps for early, late in zip(before, after, strict=True)))


def cpu_by_daemon(cluster: WatchedCluster) -> list[float]:
    """Return the CPU seconds of aggregator, worker and `tiermesh web` so far."""
    return [cluster.cpu_seconds(name) for name in _DAEMONS]


def describe_blocks(blocks: Sequence[Block]) -> str:
    """Return the mean CPU seconds of a step by daemon, for people."""
    means = {name: statistics.fmean(getattr(each, name) for each in blocks) for name in _DAEMONS}
    return ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())


async def wait_steps(events: AsyncGenerator[jobs_pb2.JobEvent, None], count: int) -> None:
    """Take events until there were so many steps."""
    for _ in range(count):
        await next_event(events, lambda event: event.kind == "step")


class ClientProcess:
    """The clients' process, which carries out an order at a time, a line each, and answers it by a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, program: Path, *words: str) -> ClientProcess:
        """Start a program of `benchmarks/peers`."""
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, str(program), *words, stdin=pipe, stdout=pipe, env=environment
            )
        )

    async def order(self, *words: str) -> str:
        """Give an order, and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), LIMIT_SECONDS)
        if not answer:
            raise Failed(f"the clients have ended at the order {words[0]}")
        return answer.decode().strip()

    def stop(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
