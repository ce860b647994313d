"""A worker's daemon, up to its end of the socket, of a program that has joined."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from services.pipeline.exchange import Compute, FinishedPass, Float32Array, LocalExchange
from services.runtime.child_output import TakeLines
from services.tensors.layout import Layout
from tiermesh import wire
from worker.compute_process import Child, ComputeProcesses, over_socket_pair
from worker.job_order import BuildWatch, JobOrder, PassWatch
from worker.remote_step import RemoteStep

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0
CONFIG: dict[str, Any] = {
    "seed": 7,
    "exact": False,
    "batch_size": 4,
    "validation_batches": 2,
    "steps": 10,
    "model": {"model_type": "external", "max_sequence_length": 8},
}


class Program:
    """A loop on a thread of the test, which joins at the path that it is given. It is a daemon's `Child`.

    Attributes:
        error: what the loop has raised.
    """

    def __init__(self, loop: Callable[[str], None]) -> None:
        self._loop = loop
        self.error: BaseException | None = None
        self._end: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def spawn(self, end: socket.socket, take_lines: TakeLines) -> Program:
        """Start the loop, whose `join` finds this end of the socket."""
        self._end = end.dup()
        self._thread.start()
        return self

    def _run(self) -> None:
        assert self._end is not None
        try:
            self._loop(f"fd:{self._end.fileno()}")
        except BaseException as error:
            self.error = error
        finally:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> bool:
        """Return whether the loop has ended; wait for that at most so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self, grace_seconds: float, because: str = "") -> str:
        """End the conversation, and wait for the loop."""
        if self._end is not None:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
        self._thread.join(grace_seconds)
        return because or "it has left"


def connect_to_descriptor(path: str | os.PathLike[str]) -> wire.Channel:
    """Stand in for `connect`: the path is that of a socket which this process has already, `fd:NUMBER`."""
    return wire.Channel(socket.socket(fileno=os.dup(int(os.fspath(path).removeprefix("fd:")))))


class Daemon:
    """What a worker does with the program's step.

    Attributes:
        step: the step.
        non_finite: what the program has told of gradients that are not finite.
        ready: the offsets that the newest gradient was told to be complete from.
    """

    def __init__(self, start: Callable[[socket.socket, TakeLines], Child], **config: Any) -> None:
        self.non_finite: list[tuple[int, str]] = []
        self.ready: list[int] = []
        self.fetched: list[int] = []
        self.on_begin: Callable[[], None] = lambda: None
        order = JobOrder("job-1", json.dumps({**CONFIG, **config}), {}, None, None)
        self.mesh: Any = None
        self._processes = ComputeProcesses(over_socket_pair(start), lambda lines: None, lambda seconds: None)
        self.step = RemoteStep(
            self._processes,
            order,
            BuildWatch(self._note_mesh, lambda path, read_bytes, size_bytes: None),
            PassWatch(
                self._fetch, lambda index, name: self.non_finite.append((index, name)), lambda found: None
            ),
        )
        self.pending: Float32Array | None = None

    def _note_mesh(self, mesh: Any) -> None:
        self.mesh = mesh

    def _fetch(self, entry: int) -> None:
        self.fetched.append(entry)
        self.step.load(len(self.layout.entries), is_new=False)

    @property
    def layout(self) -> Layout:
        """Layout that the program has told."""
        return self.step.layout

    def load(self, values: Sequence[float] | Float32Array, *, entries: int | None = None) -> None:
        """Give the program weights, flat; only the first entries if that is said."""
        self.step.weights[:] = np.asarray(values, np.float32)
        self.step.load(len(self.layout.entries) if entries is None else entries, is_new=True)

    def gradient(self, step: int, index: int) -> tuple[float, Float32Array]:
        """Return loss and gradient of a micro-batch."""
        found = np.full(self.layout.elements, np.nan, np.float32)
        finished: list[FinishedPass] = []
        self.ready = []

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            self.on_begin()
            finished.append(compute(found, self.ready.append))
            return finished[-1]

        self.step.micro_batches(step, index, 1, add_leaf, LocalExchange())
        assert finished[0].loss is not None
        return finished[0].loss, found

    def evaluate(self, index: int) -> tuple[float, int] | None:
        """Return the sum of losses, and their number, of a held-out batch."""
        return self.step.evaluate(index, LocalExchange())

    def close(self) -> None:
        """Close the job, and end the program's connection."""
        if not self.step.is_lost:
            self.step.close()
            self._processes.end_kept()


@contextmanager
def daemon_of(start: Callable[[socket.socket, TakeLines], Child], **config: Any) -> Iterator[Daemon]:
    """Play a daemon for a program, whose end follows."""
    daemon = Daemon(start, **config)
    try:
        yield daemon
    finally:
        with suppress(Exception):
            daemon.close()
