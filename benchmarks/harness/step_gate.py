"""A gate that starts a step of all no-compute workers at once, and sees when each has its new weights."""

from __future__ import annotations

import selectors
import socket
import time
from pathlib import Path
from types import TracebackType

from services.errors import Failed

LIMIT_SECONDS = 120.0
"""Longest wait for the workers. The first wait includes building the job."""


class StepGate:
    """A Unix socket that all workers (peers/no_compute_worker.py) connect to.

    Args:
        path: Path of the socket.
        workers: number of workers.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self._workers = workers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(workers)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._loaded: dict[socket.socket, int] = {}  # how often each worker has received new weights
        self._free_steps = 0
        self._ready = 0

    def __enter__(self) -> StepGate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for connection in (self._listener, *self._loaded):
            connection.close()
        self._selector.close()

    def warm_up(self, steps: int) -> None:
        """Let every worker pass as soon as it is ready, until each has received new weights this many times.

        The first step may have a lease for one worker only: it is planned before the others have any weights.
        """
        self._free_steps = steps
        self._await(b"l", steps * self._workers)

    def until_ready(self) -> None:
        """Wait until all workers have their gradients ready."""
        self._await(b"r", self._workers - self._ready)
        self._ready = 0

    def go(self) -> None:
        """Let all workers pass. They must be ready."""
        for connection in self._loaded:
            connection.sendall(b"g")

    def exchange(self) -> float:
        """Let all workers pass, and return the seconds until all have new weights. They must be ready."""
        started = time.perf_counter()
        self.go()
        self._await(b"l", self._workers)
        return time.perf_counter() - started

    def _await(self, word: bytes, count: int) -> None:
        """Wait until the workers have sent this byte that many times."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while count > 0:
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise Failed(
                    f"workers: {count} of their messages {word!r} are missing after {LIMIT_SECONDS:g} s; see their logs"
                )
            for key, _ in events:
                if key.fileobj is self._listener:
                    connection = self._listener.accept()[0]
                    self._loaded[connection] = 0
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(1)
                if not received:
                    raise Failed(
                        "workers: one closed its connection to the gate; see the logs of the workers"
                    )
                self._loaded[key.fileobj] += received == b"l"
                if received == word:
                    count -= 1
                elif received == b"r":
                    if self._loaded[key.fileobj] < self._free_steps:
                        key.fileobj.sendall(b"g")
                    else:
                        self._ready += 1
