"""Role daemons as child processes: start, wait until ready, watch, signal, stop.

`tiermesh local`, `tiermesh chaos`, the tests and the benchmarks all start daemons through `DaemonProcess`. The `spawn`
argument sets how a process comes to be: as a plain subprocess, as a fork of a warm process, or in the namespaces of
another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeVar

from services.corpora import cache
from services.errors import Failed, Refused
from services.input_files import NoSuchFile, read_input_file
from services.printable import printable, printable_path
from services.timeouts import SAVE_SECONDS, STANDARD_TIMEOUTS

READY_SECONDS = 120.0
"""Limit for a start; opening a device takes long, and so does a start on a busy machine."""

_POLL_SECONDS = 0.05
_LOG_END_BYTES = 1 << 20
"""Length of a log's end that is searched for errors."""
_READY_BYTES = 1 << 16
"""Longest file of a daemon that serves."""
HOST_VARIABLES = ("TIERMESH_DATA", cache.VARIABLE)
"""Environment variables that say something of the host, and are no options."""
_SAY_SECONDS = 2.0
"""Time of a stop after which people are told what it waits for."""

Self = TypeVar("Self", bound="DaemonProcess")


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that a launcher needs."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Pipe to the standard input; closing it ends a daemon started with `--exit-with-parent`."""

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal; None until `poll` or `wait` has seen the end."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raise subprocess.TimeoutExpired."""

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""


Spawn = Callable[[Sequence[str], IO[bytes]], ChildProcess]
"""Starts a command, with both outputs in a file and a pipe as standard input."""


def environment_without_options() -> dict[str, str]:
    """Return the environment without the options of this command, which are not those of its daemons.

    They are the `TIERMESH_*` variables, but for `HOST_VARIABLES`.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIERMESH_") or name in HOST_VARIABLES
    }


def spawn_subprocess(
    command: Sequence[str],
    log: IO[bytes],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    process_class: type[subprocess.Popen[bytes]] = subprocess.Popen,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that Ctrl-C reaches the launching process alone.

    Args:
        command: program and arguments.
        log: file for both outputs.
        environment: variables of the process; by default this process's, without options of Tiermesh.
        folder: working directory; None for this process's.
        process_class: `Popen`, or a subclass that signals in another way.
    """
    if environment is None:
        environment = environment_without_options()
    return process_class(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    )


class DaemonProcess:
    """One role daemon as a child process, which ends when its parent does.

    Args:
        role: worker, aggregator or optimizer.
        name: daemon's name.
        folder: folder of its log and ready file.
        arguments: further options of the role's command.
        program: what Python runs; the role and its options follow.
        host: address to listen on.
        spawn: starts the process.

    Attributes:
        role: worker, aggregator or optimizer.
        name: daemon's name, also that of its log.
        log: file with its standard output and error.
        port: port of its gRPC server, once ready; kept over restarts.
        tensor_port: port of its data streams, once ready; 0 if it has none.
        metrics_port: port of its `/metrics`, once ready.
    """

    def __init__(
        self,
        role: str,
        name: str,
        folder: Path,
        arguments: Sequence[str] = (),
        *,
        program: Sequence[str] = ("-m", "cli.main"),
        host: str = "127.0.0.1",
        spawn: Spawn = spawn_subprocess,
    ) -> None:
        self.role = role
        self.name = name
        self.log = folder / f"{name}.log"
        self.port = self.tensor_port = self.metrics_port = 0
        self._arguments = tuple(arguments)
        self._program = tuple(program)
        self._host = host
        self._spawn = spawn
        self._process: ChildProcess | None = None
        self._ready_file = folder / f"{name}.ready.json"
        self._started_at = 0.0
        self._log_start_bytes = 0  # what earlier processes of this name wrote

    def start(self: Self) -> Self:
        """Start the process, or start it again on the port that its peers know; return this object."""
        self._ready_file.unlink(missing_ok=True)
        self._close_stdin()
        with self.log.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = self._spawn(self.command(), log)
        self._started_at = time.monotonic()
        return self

    def command(self) -> list[str]:
        """Return program and arguments of the next start."""
        return [
            sys.executable, *self._program, self.role, "--name", self.name, "--listen", self.address,
            "--ready-file", str(self._ready_file), "--exit-with-parent", *self._arguments,
        ]  # fmt: skip

    @property
    def is_shard(self) -> bool:
        """Whether it is a shard of an aggregator."""
        return "--shard" in self._arguments

    @property
    def address(self) -> str:
        """`HOST:PORT` of the gRPC server; port 0 before the first start."""
        return f"{self._host}:{self.port}"

    @property
    def process(self) -> ChildProcess:
        """Child process of the latest start."""
        assert self._process is not None, f"{self.name}: start() must be called first"
        return self._process

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def age_seconds(self) -> float:
        """Time since the latest start."""
        return time.monotonic() - self._started_at

    # ---- readiness ----

    def is_ready(self) -> bool:
        """Return whether the daemon serves, and learn its ports.

        Raises:
            Failed: the process has ended, or its file is damaged.
        """
        if self.process.poll() is not None:
            raise Failed(self.describe_end())
        try:
            ports = json.loads(read_input_file("", self._ready_file, _READY_BYTES))
            found = [ports[name] for name in ("port", "tensor_port", "metrics_port")]
        except NoSuchFile:
            return False
        except (Refused, ValueError, TypeError, KeyError, RecursionError):
            found = []
        if not found or not all(type(port) is int and 0 <= port <= 65535 for port in found):
            raise Failed(
                f"{printable_path(self._ready_file)}: damaged, expected the ports of {self.role} {self.name} as JSON; "
                "remove it, and start the daemon again"
            )
        self.port, self.tensor_port, self.metrics_port = found
        return True

    async def wait_ready(self) -> None:
        """Wait until the daemon serves.

        Raises:
            Failed: the process ended, or takes longer than READY_SECONDS.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise Failed(
                    f"{self.name} (process {self.pid}): not ready after {READY_SECONDS:g} s; see {self.log}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    # ---- end ----

    async def wait_ended(self) -> int:
        """Wait without a limit for the process to end; return its exit code."""
        process, loop = self.process, asyncio.get_running_loop()
        while (code := process.poll()) is None:
            ended = asyncio.Event()
            descriptor = os.pidfd_open(process.pid)
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return code

    def describe_end(self) -> str:
        """Return one line about how the process ended: exit code or signal, its last error, its log."""
        code = self.process.returncode
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit code {code}"
        last, is_error = read_last_line(self.log, self._log_start_bytes)
        # A signal comes from outside, and a line that reports no error does not say why a process ended.
        says_why = is_error and code is not None and code >= 0
        quoted = f"{': ' if says_why else '; its last line, perhaps unrelated: '}{last}" if last else ""
        return f"{self.name} (process {self.pid}) ended, {how}{quoted}; see {self.log}"

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process while its connections stay open."""
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        self.send_signal(signal.SIGCONT)

    async def stop(
        self, limit_seconds: float = STANDARD_TIMEOUTS.kill, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Send SIGTERM, and SIGKILL if the process needs longer than the limit to end.

        Args:
            limit_seconds: the limit. A process that writes the last checkpoint has `SAVE_SECONDS` more.
            say: called with one line if that takes long.
        """
        began, saving, told = time.monotonic(), "", False
        self.send_signal(signal.SIGTERM)
        while self.process.poll() is None and (waited := time.monotonic() - began) < limit_seconds:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wait_ended(), min(_POLL_SECONDS, limit_seconds - waited))
            if not saving and (saving := self._read_saving()):
                limit_seconds += SAVE_SECONDS
            if saving and not told and waited > _SAY_SECONDS:
                told = True
                say(f"waiting up to {SAVE_SECONDS / 60:g} min for {saving}, which {self.name} writes to disk")
        self.send_signal(signal.SIGKILL)
        await self.wait_ended()
        self.close()

    def _read_saving(self) -> str:
        """Return what the process saves before it ends, as its ready file says; empty for nothing."""
        try:
            found = json.loads(read_input_file("", self._ready_file, _READY_BYTES))["saving"]
        except (Refused, ValueError, TypeError, KeyError, RecursionError):
            return ""
        return printable(str(found), 200)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Kill the process if it still runs, close its pipe and remove the ready file."""
        self.kill()
        self._close_stdin()
        self._ready_file.unlink(missing_ok=True)

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


async def stop_all(daemons: Iterable[DaemonProcess], say: Callable[[str], None] = lambda text: None) -> None:
    """Stop daemons in the reverse order of their start, those of one role together.

    A shard outlives its aggregator, which saves the weights that its shards have.

    Args:
        daemons: the daemons.
        say: called with one line if a checkpoint that one of them writes takes long.
    """
    groups: dict[tuple[str, bool], list[DaemonProcess]] = {}
    for daemon in daemons:
        groups.setdefault((daemon.role, daemon.is_shard), []).append(daemon)
    for group in reversed(list(groups.values())):
        await asyncio.gather(*(daemon.stop(say=say) for daemon in group))


def kill_all(daemons: Collection[DaemonProcess]) -> None:
    """Kill daemons at once, so that none sees another one go, and free what they held here."""
    for daemon in daemons:
        daemon.send_signal(signal.SIGKILL)
    for daemon in daemons:
        daemon.close()


def read_last_line(log: Path, start_bytes: int = 0) -> tuple[str, bool]:
    """Return the last line of a log that reports an error, else its last line, and whether it reports one.

    Args:
        log: log file.
        start_bytes: number of bytes at the beginning to skip.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start_bytes, os.fstat(file.fileno()).st_size - _LOG_END_BYTES))
            text = file.read(_LOG_END_BYTES).decode(errors="replace")
    except OSError:
        return "", False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if " ERROR " in line or " CRITICAL " in line or "Error:" in line]
    return (errors or lines or [""])[-1], bool(errors)
