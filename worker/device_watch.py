"""What the device thread does, and since when: told to the aggregator with each heartbeat, so that it finds a hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from protos import cluster_pb2 as pb


class _Doing(NamedTuple):
    task: pb.DeviceTask
    since_seconds: float
    waits_for: str


class DeviceWatch:
    """Record of the device thread's task. The device thread writes it, any thread reads it.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._doing = _Doing(
            pb.DEVICE_TASK_UNSPECIFIED, clock(), ""
        )  # replaced as a whole, so readers need no lock

    def report(self) -> pb.DeviceReport:
        """Return what the device thread does now."""
        doing = self._doing
        seconds = max(0.0, self._clock() - doing.since_seconds)
        return pb.DeviceReport(task=doing.task, seconds=seconds, waits_for=doing.waits_for)

    def advance(self) -> None:
        """Note that the device thread gets on with its task."""
        self._doing = self._doing._replace(since_seconds=self._clock())

    @contextmanager
    def doing(self, task: pb.DeviceTask) -> Iterator[None]:
        """Be at a task; afterwards, at the one before."""
        with self._changed(task, ""):
            yield

    @contextmanager
    def waiting(self, waits_for: str) -> Iterator[None]:
        """Wait for another process, amid the task.

        Args:
            waits_for: what it owes, for people.
        """
        with self._changed(self._doing.task, waits_for):
            yield

    @contextmanager
    def _changed(self, task: pb.DeviceTask, waits_for: str) -> Iterator[None]:
        before = self._doing
        self._doing = _Doing(task, self._clock(), waits_for)
        try:
            yield
        finally:
            self._doing = before._replace(since_seconds=self._clock())
