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
        hung_since: when the hang began, in the loop's time, as long as it lasts; None for no hang.
    """

    def __init__(self, process: Process) -> None:
        self.hang_seconds = 0.0
        self.hung_since: float | None = None
        self._process = process
        self._tasks: deque[tuple[pb.DeviceTask, Task]] = deque()
        self._busy = False
        self._waiting = False
        self._since_seconds = 0.0

    def submit(self, kind: pb.DeviceTask, task: Task) -> None:
        """Run the task after all earlier ones."""
        self._tasks.append((kind, task))
        if not self._busy:
            self._work()

    @property
    def task(self) -> pb.DeviceTask:
        """What kind of task is under way."""
        return self._tasks[0][0] if self._tasks else pb.DEVICE_TASK_UNSPECIFIED

    def report(self) -> pb.DeviceReport:
        """Return what the device does, as a heartbeat says it."""
        if not self._busy:
            return pb.DeviceReport()
        seconds = max(0.0, self._process.now - self._since_seconds)
        waits_for = "another process" if self._waiting else ""
        return pb.DeviceReport(task=self.task, seconds=seconds, waits_for=waits_for)

    def wake(self) -> None:
        """Continue a task that waits, because a chunk has arrived or a lease was dropped."""
        if self._waiting:
            self._waiting = False
            self._work(waited_since=self._since_seconds)

    def _work(self, waited_since: float | None = None) -> None:
        self._busy, self.hung_since = True, None
        while self._tasks:
            self._since_seconds = self._process.now
            seconds = next(self._tasks[0][1], None)
            if seconds == WAIT:
                self._waiting = True
                if waited_since is not None:  # it was woken for nothing
                    self._since_seconds = waited_since
                return
            waited_since = None
            if seconds is None:
                self._tasks.popleft()
            elif seconds or self.hang_seconds:
                if self.hang_seconds:
                    self.hung_since = self._process.cluster.loop.now
                seconds, self.hang_seconds = seconds + self.hang_seconds, 0.0
                self._process.later(seconds, self._work)
                return
        self._busy = False
