"""Daemons and commands of Tiermesh as processes on loopback, and waits for what they do."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from benchmarks.harness.hosts import LOOPBACK, Host
from services.runtime.launcher import DaemonProcess, Spawn, environment_without_options
from tests.support.cluster.fork_server import ROLES, fork_server, spawner

LIMIT_SECONDS = 60.0
"""Longest wait for anything. On an idle machine every wait takes less than a tenth of it."""

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], what: str, limit_seconds: float = LIMIT_SECONDS) -> Found:
    """Return the first true value that `look` returns. Raises AssertionError with `what` after the time limit."""
    deadline = time.monotonic() + limit_seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {limit_seconds:g} s for {what}"
        time.sleep(0.02)
    return found


def environment() -> dict[str, str]:
    """Return this process's environment without settings of Tiermesh, and without the width of a terminal."""
    kept = environment_without_options()
    kept.pop("COLUMNS", None)  # pytest-xdist sets it for its processes
    return kept


def tiermesh(*arguments: object, limit_seconds: float = LIMIT_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a `tiermesh` command to its end."""
    words = [str(each) for each in arguments]
    role = words[0] if words[0] in ROLES else "aggregator"
    with TemporaryFile() as output, TemporaryFile() as errors:
        command = fork_server(role, environment()).start("cli.main", words, {}, output, errors)
        command.stdin.close()
        try:
            code = command.wait(limit_seconds)
        finally:
            command.send_signal(signal.SIGKILL)
        for each in (output, errors):
            each.seek(0)
        printed = (each.read().decode() for each in (output, errors))
        return subprocess.CompletedProcess(words, code, *printed)


def only_first(role: str, failpoints: str) -> Callable[[str], str]:
    """Return the `failpoints` of a cluster in which the first process of a role has these, and no other one has any."""
    left = [failpoints]
    return lambda started: left.pop() if started == role and left else ""


def tls_flags(folder: Path | None, name: str) -> tuple[object, ...]:
    """Return the options that show the certificate `name`.pem of a folder and trust its authority.pem."""
    if folder is None:
        return ()
    pair = ("--tls-cert", folder / f"{name}.pem", "--tls-key", folder / f"{name}.key")
    return (*pair, "--tls-ca", folder / "authority.pem")


class Daemon(DaemonProcess):
    """One `tiermesh ROLE` process, started at once.

    On this machine it is forked from a warm process, which saves most of the time of its start.

    Args:
        role: worker, aggregator or optimizer.
        name: daemon's name.
        folder: folder of its log and ready file.
        *arguments: further options of the role's command.
        module: Python module that runs in place of the command.
        host: where the daemon runs; on another host than LOOPBACK its ports can't be reached from here.
        settings: further environment variables.
        spawn: starts the process in another way, with an environment of its own.
    """

    def __init__(
        self,
        role: str,
        name: str,
        folder: Path,
        *arguments: object,
        module: str = "cli.main",
        host: Host = LOOPBACK,
        settings: Mapping[str, str] | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        settings = settings or {}
        if spawn is None and host == LOOPBACK:
            spawn = spawner(role, environment(), settings)
        elif spawn is None:
            spawn = host.spawner({**environment(), **settings})
        options = [*host.flags, *map(str, arguments)]
        if role == "worker" and "--state-dir" not in options:
            options += ["--state-dir", str(folder / "workers")]
        super().__init__(role, name, folder, options, program=("-m", module), host=host.address, spawn=spawn)
        self.start()

    def ready(self) -> Daemon:
        """Wait until the daemon serves; return it."""
        eventually(self.is_ready, f"{self.name} to be ready")
        return self

    def metrics(self) -> dict[str, float]:
        """Return the samples of `/metrics`, by name with labels."""
        lines = eventually(self._scrape, f"the metrics of {self.name}").decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _scrape(self) -> bytes:
        """Return `/metrics`; nothing if the port resets the connection, as it does if there are too many a second."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                content: bytes = reply.read()
        except ConnectionResetError:
            return b""
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionResetError):
                return b""
            raise
        return content

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels; 0 if there are none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(each in sample for each in wanted)
        )

    def log_text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    def wait_log(self, text: str) -> None:
        """Wait until the log contains `text`."""
        eventually(lambda: text in self.log_text(), f"{text!r} in the log of {self.name}")

    def freeze(self) -> None:
        """Stop the process; return once no thread of it runs, nor a call of one that writes to the disk."""
        super().freeze()
        eventually(self._has_stopped, f"{self.name} to stop")

    def _has_stopped(self) -> bool:
        try:
            tasks = [(each / "stat").read_text() for each in Path(f"/proc/{self.pid}/task").iterdir()]
        except OSError:  # a thread has ended
            return False
        return all(each.rpartition(") ")[2].startswith("T") for each in tasks)

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the process to end; return its exit code."""
        return self.process.wait(LIMIT_SECONDS)
