"""An aggregator in 2 tiers with one worker, and the events of its jobs: for figures of a single worker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from benchmarks.harness.job_settings import ROOT, data_dir
from protos import jobs_pb2
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.runtime.launcher import (
    DaemonProcess,
    environment_without_options,
    kill_all,
    spawn_subprocess,
)
from services.transport.security import Security

LIMIT_SECONDS = 120.0


class WatchedCluster:
    """Async context manager that runs the daemons, with the Python of this process.

    Args:
        folder: new folder of their state and logs.
        tree: the tree of Tiermesh whose code runs.
        worker_options: further options of the worker.
        worker_program: what Python runs as the worker.
        aggregator_program: what Python runs as the aggregator.
        aggregator_options: further options of the aggregator.
        environment: further variables of all daemons.

    Attributes:
        client: calls the aggregator.
    """

    client: JobsClient

    def __init__(
        self,
        folder: Path,
        *,
        tree: Path = ROOT,
        worker_options: tuple[str, ...] = (),
        worker_program: tuple[str, ...] = ("-m", "cli.main"),
        aggregator_program: tuple[str, ...] = ("-m", "cli.main"),
        aggregator_options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._environment = {
            **environment_without_options(),
            "PYTHONPATH": str(tree),
            "TIERMESH_DATA": str(data_dir()),
            **(environment or {}),
        }
        self._spawn = partial(spawn_subprocess, environment=self._environment, folder=tree)
        self._worker_options = worker_options
        self._programs = {"worker": worker_program, "aggregator": aggregator_program}
        self._aggregator_options = aggregator_options
        self.daemons: list[DaemonProcess] = []

    async def __aenter__(self) -> WatchedCluster:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            aggregator = await self._start("aggregator", *self._aggregator_options)
            self._address = aggregator.address
            await self._start("worker", "--aggregator", self._address, *self._worker_options)
        except BaseException:
            kill_all(self.daemons)
            raise
        self.client = JobsClient(AggregatorTarget(self._address, Security(), LIMIT_SECONDS))
        return self

    async def _start(self, role: str, *options: str) -> DaemonProcess:
        state = ("--state-dir", str(self.folder / role))
        program = self._programs.get(role, ("-m", "cli.main"))
        daemon = DaemonProcess(
            role, role, self.folder, (*state, *options), program=program, spawn=self._spawn
        )
        self.daemons.append(daemon.start())
        await daemon.wait_ready()
        return daemon

    async def serve_http(self) -> tuple[str, str]:
        """Start the HTTP API, and return its URL and token."""
        kept = self.folder / "web-token"
        web = await self._start("web", "--aggregator", self._address, "--token-file", str(kept))
        return f"http://{web.address}", kept.read_text().strip()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_all(self.daemons)
        await self.client.close()

    async def submit(self, *words: str) -> str:
        """Run `tiermesh submit` in a process of its own, as a person does; return the job's id (Failed)."""
        return await asyncio.to_thread(self._submit, words)

    def _submit(self, words: tuple[str, ...]) -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "cli.main",
                "submit",
                *words,
                "--json",
                "--aggregator",
                self._address,
            ],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode != 0:
            raise Failed(f"tiermesh submit {' '.join(words)}: {done.stderr.strip()}")
        return str(json.loads(done.stdout)["job"])

    async def start_external(self, socket: Path) -> DaemonProcess:
        """Start a worker that a process of a user may join at a socket."""
        name = f"external-{len(self.daemons)}"
        state = ("--state-dir", str(self.folder / name))
        options = ("--aggregator", self._address, *state, "--external", "--socket", str(socket))
        daemon = DaemonProcess("worker", name, self.folder, options, spawn=self._spawn)
        self.daemons.append(daemon.start())
        await daemon.wait_ready()
        return daemon

    def worker_processes(self) -> list[int]:
        """Return the ids of the worker's daemon, and of the processes that it has started."""
        return [self.find("worker").pid, *self.processes("worker")]

    def processes(self, daemon: str) -> list[int]:
        """Return the ids of the processes that a daemon has started."""
        threads = Path(f"/proc/{self.find(daemon).pid}/task").glob("*/children")
        return [int(child) for each in threads for child in each.read_text().split()]

    def cpu_seconds(self, *names: str) -> float:
        """Return the CPU time of some daemons, or of all, and of the processes that they have started."""
        ticks = 0
        for daemon in self.daemons:
            if names and daemon.name not in names:
                continue
            for process in (daemon.pid, *self.processes(daemon.name)):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def find(self, name: str) -> DaemonProcess:
        """Return a daemon."""
        return next(each for each in self.daemons if each.name == name)


async def next_event(
    events: AsyncIterator[jobs_pb2.JobEvent], is_it: Callable[[jobs_pb2.JobEvent], bool]
) -> jobs_pb2.JobEvent:
    """Return the next event of a kind. The others are skipped.

    Raises:
        Failed: the job failed, or no event came in time.
    """
    while True:
        try:
            event = await asyncio.wait_for(anext(events), LIMIT_SECONDS)
        except (asyncio.TimeoutError, StopAsyncIteration):
            raise Failed(f"no such event of the job within {LIMIT_SECONDS:g} s, or before its end") from None
        if event.job.state == jobs_pb2.FAILED:
            raise Failed(f"the job failed: {event.job.detail}")
        if is_it(event):
            return event
