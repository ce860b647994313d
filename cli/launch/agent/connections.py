"""Connections of an agent: standard input and output, and for a detached one the Unix socket in its folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from cli.launch.agent.process import RESULT_FILE, SOCKET, Agent, explain_write_errors
from cli.launch.agent.protocol import MAX_LINE_BYTES
from cli.launch.openssh import NO_AGENT
from services.errors import ExitCode, Refused
from services.input_files import read_input_file
from services.printable import printable_path
from services.runtime.file_locks import try_lock
from services.runtime.process import run_daemon
from services.tasks import start_thread

_BLOCK_BYTES = 1 << 16


def run_agent(folder: str) -> int:
    """Serve the launcher at the other end of standard input and output; return the exit code.

    Args:
        folder: the run's folder on this host; a relative path begins in the home folder.

    Raises:
        Refused: the folder can't be made, or is that of another agent.
    """
    path = Path.home() / folder
    with explain_write_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chdir(path)  # so that the socket's path is short, whatever the folder's is
    lock = try_lock(path / "lock")
    if lock is None:
        raise Refused(
            f"{printable_path(path)}: another agent runs in this folder; attach to that run, or stop it"
        )
    with lock:
        return run_daemon(lambda: _serve_standard_streams(path))


def relay(folder: str) -> int:
    """Connect standard input and output to the agent of a detached run; return the exit code.

    Raises:
        Refused: there is none, nor a result that it has left.
    """
    path = Path.home() / folder
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(path)
        connection.connect(SOCKET)
    except OSError:
        return _tell_result(path)

    def forward() -> None:
        _pump(lambda: os.read(0, _BLOCK_BYTES), connection.sendall)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)

    start_thread(forward, "standard-input")
    with os.fdopen(os.dup(1), "wb", buffering=0) as output:
        answered = _pump(lambda: connection.recv(_BLOCK_BYTES), output.write)
    # An agent that is about to end serves no launcher.
    return ExitCode.DONE if answered else _tell_result(path)


def _tell_result(folder: Path) -> int:
    """Print the message that an agent has left in the run's folder, as it would be sent; return the exit code."""
    try:
        line = read_input_file("", folder / RESULT_FILE, MAX_LINE_BYTES)
    except Refused:
        raise Refused(f"{printable_path(folder)}: {NO_AGENT}; the run has ended") from None
    sys.stdout.buffer.write(line)
    return ExitCode.DONE


async def _serve_standard_streams(folder: Path) -> None:
    await Agent(folder).run(*await _open_standard_streams())


def _pump(source: Callable[[], bytes], sink: Callable[[bytes], object]) -> bool:
    """Pass on all bytes to their end, or until one side is gone; return whether there were any."""
    passed = False
    with contextlib.suppress(OSError):
        while content := source():
            passed = True
            sink(content)
    return passed


async def _open_standard_streams() -> tuple[asyncio.StreamReader, asyncio.WriteTransport]:
    """Return asyncio's streams of the two, and let what else is printed go to standard error."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", buffering=0)
        )
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, output)
    except ValueError:
        raise Refused(
            "launch-agent: has no pipes as standard input and output; `tiermesh launch` starts it"
        ) from None
    return reader, transport
