"""Daemons of this machine as child processes: started, waited for until ready, watched, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.errors import Failed
from services.tensors.kernels import compiler
from services.timeouts import STANDARD_TIMEOUTS

READY_SECONDS = 120.0
"""A daemon must serve within this time; a device, or a busy machine, takes its time."""

_POLL_SECONDS = 0.05


class Daemon:
    """One role daemon.

    Args:
        role: worker, aggregator or optimizer.
        name: of the daemon.
        folder: for its log and ready file.
        arguments: more options of that role's command.

    Attributes:
        role: worker, aggregator or optimizer.
        name: of the daemon, also of its log.
        log: file that has its standard output and error.
        port: of its gRPC server, once ready.
        tensor_port: of its data streams, once ready; 0: it has none.
    """

    def __init__(self, role: str, name: str, folder: Path, arguments: Sequence[str]) -> None:
        self.role = role
        self.name = name
        self.log = folder / f"{name}.log"
        self.port = 0
        self.tensor_port = 0
        self._arguments = tuple(arguments)
        self._ready = folder / f"{name}.ready.json"
        self._process: asyncio.subprocess.Process
        self._started = 0.0
        self._log_start_bytes = 0  # what an earlier process of this name wrote

    @classmethod
    async def start(cls, role: str, name: str, folder: Path, arguments: Sequence[str]) -> Daemon:
        """Start `tiermesh ROLE` on loopback, on any free ports; see the class for the arguments."""
        daemon = cls(role, name, folder, arguments)
        await daemon.start_process()
        return daemon

    async def start_process(self) -> None:
        """Start its process, which stops by itself if this one goes; once ended, anew, on the port that peers know."""
        self._ready.unlink(missing_ok=True)
        # Flags from the environment are meant for this command, not for its daemons.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TIERMESH_") or name in ("TIERMESH_DATA", compiler.VARIABLE)
        }
        with self.log.open("ab") as file:
            self._log_start_bytes = file.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cli.main", self.role, "--name", self.name, "--listen", self.address,
                "--metrics-listen", "127.0.0.1:0", "--ready-file", str(self._ready), "--exit-with-parent",
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
                # Ctrl-C reaches this process alone, which then stops its daemons in order.
                start_new_session=True,
            )  # fmt: skip
        self._started = time.monotonic()

    @property
    def address(self) -> str:
        """`HOST:PORT` of its gRPC server."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def age_seconds(self) -> float:
        """How long ago its process was started."""
        return time.monotonic() - self._started

    async def ready(self) -> None:
        """Wait until it serves.

        Raises:
            Failed: it ends before, or takes longer than READY_SECONDS.
        """
        started = time.monotonic()
        while not self._ready.exists():
            if self._process.returncode is not None:
                raise Failed(self.obituary())
            if time.monotonic() - started > READY_SECONDS:
                raise Failed(
                    f"{self.name} (process {self.pid}): not ready after {READY_SECONDS:g} s; see {self.log}"
                )
            await asyncio.sleep(_POLL_SECONDS)
        ports = json.loads(self._ready.read_text())
        self.port, self.tensor_port = int(ports["port"]), int(ports["tensor_port"])

    async def ended(self) -> int:
        """Wait until the process has ended, however long that is; returns its exit code."""
        return await self._process.wait()

    def obituary(self) -> str:
        """How it ended, in one line: exit code or signal, its last error, where its log is."""
        code = self._process.returncode
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit code {code}"
        last = last_error(self.log, self._log_start_bytes)
        return (
            f"{self.name} (process {self.pid}) ended, {how}{f': {last}' if last else ''}; its log: {self.log}"
        )

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes longer than the `kill` rung: its own stop ends before."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STANDARD_TIMEOUTS.kill)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        self._ready.unlink(missing_ok=True)


async def stop_all(daemons: Iterable[Daemon]) -> None:
    """Stop daemons in the reverse order of their start, those of one role together."""
    by_role: dict[str, list[Daemon]] = {}
    for daemon in daemons:
        by_role.setdefault(daemon.role, []).append(daemon)
    for group in reversed(list(by_role.values())):
        await asyncio.gather(*(daemon.stop() for daemon in group))


def last_error(log: Path, start_bytes: int = 0) -> str:
    """The last line of a log that tells of an error, else its last line; empty if there is none.

    Args:
        log: the file.
        start_bytes: what comes before isn't looked at.
    """
    try:
        text = log.read_bytes()[start_bytes:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if " ERROR " in line or " CRITICAL " in line or "Error:" in line]
    return (errors or lines or [""])[-1]
