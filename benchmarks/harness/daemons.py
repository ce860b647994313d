"""A cluster of real daemons with one job. The benchmark controls the steps of its workers."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.hosts import LOOPBACK, Host, inner_process
from benchmarks.harness.job_settings import BUILD, ROOT
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, environment_without_options, kill_all

LIMIT_SECONDS = 60.0
"""Longest wait for a daemon."""
_LOOK_SECONDS = 0.01

Self = TypeVar("Self", bound="Daemons")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Job:
    """Job of the daemons, and script of their workers.

    Attributes:
        config: file of the training config.
        worker: script that runs as a worker, with a training step that the benchmark controls; None for the real one.
        settings: overrides of the config, as `key=value`.
        environment: variables for the script.
    """

    config: Path
    worker: Path | None
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Daemons(ABC):
    """Base class of the benchmarks' clusters: a context manager that leaves no process behind.

    Args:
        name: name of its folder under build/, which is created afresh.
        job: job that the cluster runs.
        workers: number of workers, of the cluster and of the job.
        tiers: 2 or 3.
        options: options of every daemon.
        aggregator_options: options of the aggregator alone.
        hosts: hosts of the daemons, by name. Daemons that are not in it run here.
        shards: number of shards, named `shard-1` and so on. With 0 the aggregator stores the tensors.

    Attributes:
        idle_bytes: memory of the aggregator with all workers connected and no job yet.
        processes: daemons by name. On another host it is the process that entered there (`inner_process`).
    """

    idle_bytes: int

    def __init__(
        self,
        name: str,
        job: Job,
        *,
        workers: int,
        tiers: int = 2,
        options: tuple[str, ...] = (),
        aggregator_options: tuple[str, ...] = (),
        hosts: Mapping[str, Host] | None = None,
        shards: int = 0,
    ) -> None:
        self.folder = BUILD / name
        self.processes: dict[str, DaemonProcess] = {}
        self._job = job
        self._workers = workers
        self._tiers = tiers
        self._options = options
        self._aggregator_options = aggregator_options
        self._environment: dict[str, str] = {}
        self._hosts = hosts or {}
        self._shards = [f"shard-{number}" for number in range(1, shards + 1)]
        self._exit = ExitStack()

    @abstractmethod
    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Listen at the Unix socket that the workers will connect to, until the stack unwinds."""

    def __enter__(self: Self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with ExitStack() as stack:
            # Paths of Unix sockets have a short maximum length (108 bytes).
            short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermesh-bench-")))
            self._open_gate(short / "gate", stack)
            stack.callback(lambda: kill_all(self.processes.values()))
            self._environment = {
                **environment_without_options(),
                **self._job.environment,
                "TIERMESH_BENCH_GATE": str(short / "gate"),
                "PYTHONPATH": str(ROOT),
            }
            link: tuple[str, ...] = ()
            if self._tiers == 3:
                self._start("optimizer", "optimizer", "--state-dir", str(self.folder / "optimizer"))
                link = ("--optimizer", self.address("optimizer"))
            for shard in self._shards:
                self._start("aggregator", shard, "--shard", "--state-dir", str(self.folder / shard))
            if self._shards:
                link = ("--shards", ",".join(self.address(shard) for shard in self._shards))
            link += self._aggregator_options
            self._start("aggregator", "aggregator", "--state-dir", str(self.folder / "state"), *link)
            for index in range(self._workers):
                state = ("--state-dir", str(self.folder / "workers"))
                self._start(
                    "worker", f"worker-{index + 1}", "--aggregator", self.address("aggregator"), *state
                )
            for index in range(self._workers):
                self.address(f"worker-{index + 1}")
            self.idle_bytes = self.memory_bytes("VmRSS")
            self._submit_first()
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._exit.close()

    def address(self, name: str) -> str:
        """Return `HOST:PORT` of a daemon's gRPC server, as soon as it serves."""
        daemon = self.processes[name]
        self.until(lambda: daemon.is_ready() or None, f"{name} to be ready")
        return daemon.address

    def wait_written(self, name: str, path: Path, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Wait for a file that a daemon writes. Raises what `until` raises."""
        self.until(lambda: path.exists() or None, f"{path} of {name}", limit_seconds)

    def until(
        self, look: Callable[[], Found | None], what: str, limit_seconds: float = LIMIT_SECONDS
    ) -> Found:
        """Poll `look` until it returns something other than None, and return that. Files send no notification.

        Raises:
            Failed: a daemon ended that the benchmark didn't kill, or the limit was reached.
        """
        deadline = time.monotonic() + limit_seconds
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise Failed(f"waited {limit_seconds:g} s for {what}; see {self.folder}")
            ended = self._rest(_LOOK_SECONDS)
            if ended and look() is None:
                raise _ended(ended, what, self.folder)
        return found

    def until_moment(self, seconds: float, what: str) -> None:
        """Wait for a moment in Unix time. `what` describes it in errors.

        Raises:
            Failed: a daemon ended that the benchmark didn't kill.
        """
        if ended := self._rest(max(0.0, seconds - time.time())):
            raise _ended(ended, what, self.folder)

    def _rest(self, seconds: float) -> str:
        """Wait for this long, or until a daemon ends that was not killed. Return that daemon's name, else ""."""
        with ExitStack() as stack:
            ends = {}
            for name, daemon in self.processes.items():
                if daemon.process.returncode is None:
                    end = os.pidfd_open(daemon.pid)
                    stack.callback(os.close, end)
                    ends[end] = name
            readable, _, _ = select.select(ends, [], [], seconds)
            return ends[readable[0]] if readable else ""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time that each daemon has used, user and kernel, from its own clock in nanoseconds."""
        return {
            name: time.clock_gettime(_cpu_clock(inner_process(process.pid)))
            for name, process in self.processes.items()
        }

    def metric(self, name: str, metric: str) -> float:
        """Return the sum of all samples of a daemon's metric. Its `/metrics` must be on this machine."""
        port = self.processes[name].metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_SECONDS) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == metric)

    def kill(self, name: str) -> float:
        """Kill a daemon with SIGKILL, and return the Unix time of the kill."""
        seconds = time.time()
        self.processes[name].kill()
        return seconds

    def restart(self, name: str) -> None:
        """Restart a killed daemon on the port that its peers know."""
        self.processes[name].start()

    def memory_bytes(self, field: str) -> int:
        """Return a field of the aggregator's memory: VmRSS is its memory now, VmHWM its peak."""
        process = inner_process(self.processes["aggregator"].pid)
        status = Path(f"/proc/{process}/status").read_text()
        return 1024 * next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{field}:")
        )

    def _host(self, name: str) -> Host:
        return self._hosts.get(name, LOOPBACK)

    def _start(self, role: str, name: str, *arguments: str) -> None:
        host = self._host(name)
        self.processes[name] = DaemonProcess(
            role,
            name,
            self.folder,
            [*host.flags, *self._options, *arguments],
            program=[str(self._job.worker)] if role == "worker" and self._job.worker else ["-m", "cli.main"],
            host=host.address,
            spawn=host.spawner(self._environment),
        ).start()

    def _submit_first(self) -> None:
        """Submit the job that the cluster runs from its start on."""
        settings = (
            f"multihost_config.num_workers={self._workers}", "training_config.max_steps=1000000", "eval_every=0",
            "model_save_interval=0", *self._job.settings,
        )  # fmt: skip
        command = [sys.executable, "-m", "cli.main", "submit", str(self._job.config)]
        command += ["--aggregator", self.address("aggregator")]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(
            self._host("aggregator").command(command),
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"tiermesh submit: {done.stderr.strip()}")


def _ended(name: str, what: str, folder: Path) -> Failed:
    return Failed(f"{name} ended during the wait for {what}; see {folder / name}.log")


def _cpu_clock(process: int) -> int:
    """Return the id of a process's CPU clock, as clock_getcpuclockid(3) computes it on Linux."""
    return (~process << 3) | 2
