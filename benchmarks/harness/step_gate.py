"""Lets the idle workers (peers/no_compute_worker.py) begin a step together, and sees when each has its new weights."""

from __future__ import annotations

import selectors
import socket
import time
from pathlib import Path
from types import TracebackType

from services.errors import Failed

LIMIT_SECONDS = 120.0
"""Longest wait for the workers; building the job is part of the first."""


class StepGate:
    """A Unix socket that all workers connect to.

    Args:
        path: of the socket.
        workers: how many there are.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self._workers = workers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(workers)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._loaded: dict[socket.socket, int] = {}  # how often each has had new weights
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
        """Let every worker go as soon as it is ready, until it had new weights that often.

        The first step may be one worker's alone: it is planned before the others hold any weights.
        """
        self._free_steps = steps
        self._await(b"l", steps * self._workers)

    def until_ready(self) -> None:
        """Wait until all workers have their gradients ready."""
        self._await(b"r", self._workers - self._ready)
        self._ready = 0

    def go(self) -> None:
        """Let the workers go, which all are ready."""
        for connection in self._loaded:
            connection.sendall(b"g")

    def exchange(self) -> float:
        """Let the workers go, which all are ready; the seconds until all have new weights."""
        started = time.perf_counter()
        self.go()
        self._await(b"l", self._workers)
        return time.perf_counter() - started

    def _await(self, word: bytes, count: int) -> None:
        """Wait for a word of the workers, said that often."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while count > 0:
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise Failed(f"idle workers: {count} did not say {word!r} within {LIMIT_SECONDS:g} s")
            for key, _ in events:
                if key.fileobj is self._listener:
                    connection = self._listener.accept()[0]
                    self._loaded[connection] = 0
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                said = key.fileobj.recv(1)
                if not said:
                    raise Failed("idle workers: one has ended; see its log")
                self._loaded[key.fileobj] += said == b"l"
                if said == word:
                    count -= 1
                elif said == b"r":
                    if self._loaded[key.fileobj] < self._free_steps:
                        key.fileobj.sendall(b"g")
                    else:
                        self._ready += 1
