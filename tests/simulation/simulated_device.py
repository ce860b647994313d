"""The simulated device of a worker: its tasks, and the state of the leases that they compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from protos import cluster_pb2 as pb
from tests.simulation.job_model import join_keys
from tests.simulation.process import Process

Task = Iterator[float]
"""Work of the device. It yields the duration of each piece, or WAIT."""
WAIT = -1.0
"""Yielded by a task to wait until a chunk arrives or a lease is dropped."""


class LeaseState:
    """State of a lease.

    Attributes:
        keys: keys of the gradient, by first element and the element after the last; empty for leases without one.
        ready_from: index in the layout from which on the gradient is complete.
        failed: whether the lease was reported as failed.
        is_under_way: whether its passes through stages run, which exchange arrays with other workers.
        dropped: whether the core has dropped the lease.
    """

    def __init__(self, lease: pb.Lease) -> None:
        self.lease = lease
        self.keys: dict[tuple[int, int], int] = {}
        self.ready_from = 1 << 50
        self.failed = False
        self.is_under_way = False
        self.dropped = False

    def key_in(self, start: int, stop: int) -> int:
        """Return the key of the gradient of these elements, which must be computed."""
        return join_keys([key for (first, end), key in self.keys.items() if first < stop and start < end])


class DeviceQueue:
    """The device's thread, which runs one task after the other.

    Attributes:
        hang_seconds: additional duration of the next piece of work; 0 for no hang.
    """

    def __init__(self, process: Process) -> None:
        self.hang_seconds = 0.0
        self._process = process
        self._tasks: deque[Task] = deque()
        self._busy = False
        self._waiting = False

    def submit(self, task: Task) -> None:
        """Run the task after all earlier ones."""
        self._tasks.append(task)
        if not self._busy:
            self._work()

    def wake(self) -> None:
        """Continue a task that waits, because a chunk has arrived or a lease was dropped."""
        if self._waiting:
            self._waiting = False
            self._work()

    def _work(self) -> None:
        self._busy = True
        while self._tasks:
            seconds = next(self._tasks[0], None)
            if seconds is None:
                self._tasks.popleft()
            elif seconds == WAIT:
                self._waiting = True
                return
            elif seconds or self.hang_seconds:
                seconds, self.hang_seconds = seconds + self.hang_seconds, 0.0
                self._process.later(seconds, self._work)
                return
        self._busy = False
