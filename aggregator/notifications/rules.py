"""What a job's target is told: which events, and which not again. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from aggregator.core.events import NoticeKind
from aggregator.notifications.messages import Notice
from protos.jobs_pb2 import CANCELLED, FAILED, SUCCEEDED, JobEvent

QUIET_SECONDS = 600.0
"""Time in which a job's target is told of one event of a kind. Further ones are counted, and told as a number."""
OF_STEPS = (NoticeKind.LOSS_SPIKE, NoticeKind.NON_FINITE)
"""Kinds that follow from a step, so that a step which is redone would tell them again."""

_ENDS = {
    SUCCEEDED: NoticeKind.ENDED,
    CANCELLED: NoticeKind.ENDED,
    FAILED: NoticeKind.FAILED,
}


class JobRules:
    """Decides what of one job's events its target is told.

    Args:
        told_steps: newest step of each kind of `OF_STEPS` that it was told before this process began.
    """

    def __init__(self, told_steps: Mapping[str, int]) -> None:
        self._told_steps = dict(told_steps)
        self._told_at_seconds: dict[NoticeKind, float] = {}
        self._repeated: Counter[NoticeKind] = Counter()
        self._losses = LossSpikes()

    def find(self, event: JobEvent, tells: NoticeKind | None) -> Notice | None:
        """Return what the target is told of an event; None for nothing.

        Args:
            event: the event, in the order of the job's.
            tells: what the core says of it.
        """
        kind = self._find_kind(event, tells)
        if kind is None:
            return None
        if kind in OF_STEPS:
            if event.job.step <= self._told_steps.get(kind.value, -1):
                return None
            self._told_steps[kind.value] = event.job.step
        if kind in _ENDS.values():
            return Notice.of_event(kind, event, self._repeated.total())
        if abs(event.seconds - self._told_at_seconds.get(kind, -math.inf)) < QUIET_SECONDS:
            self._repeated[kind] += 1
            return None
        self._told_at_seconds[kind] = event.seconds
        return Notice.of_event(kind, event, self._repeated.pop(kind, 0))

    @property
    def repeated(self) -> int:
        """Number of events that were counted, and not told yet."""
        return self._repeated.total()

    def _find_kind(self, event: JobEvent, tells: NoticeKind | None) -> NoticeKind | None:
        job = event.job
        if event.kind == "state" and job.state in _ENDS:
            return _ENDS[job.state]
        if event.kind == "step" and job.HasField("loss"):
            if not math.isfinite(job.loss):
                return NoticeKind.NON_FINITE
            if self._losses.add(job.loss) and tells is None:
                return NoticeKind.LOSS_SPIKE
        return tells


class LossSpikes:
    """Finds losses far above those before them.

    A loss is a spike if it is more than `DEVIATIONS` standard deviations above the mean. Both are exponential averages
    over some `STEPS` steps. Then it counts as no more than that, so that one spike does not hide the next; a loss that
    stays higher becomes usual.
    """

    STEPS = 50
    LEAST_STEPS = 100
    """Number of steps before the first spike: the loss of a new job falls fast."""
    DEVIATIONS = 6.0
    LEAST_SHARE = 0.01
    """Least deviation, as a share of the mean: a loss that hardly changes has no spike of 0.1 %."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._variance = 0.0

    def add(self, loss: float) -> bool:
        """Add the loss of a step; return whether it is a spike."""
        deviation = max(math.sqrt(self._variance), self.LEAST_SHARE * abs(self._mean))
        highest = self._mean + self.DEVIATIONS * deviation
        is_spike = self._count >= self.LEAST_STEPS and loss > highest
        self._count += 1
        weight = 1 / min(self._count, self.STEPS)
        distance = (min(loss, highest) if is_spike else loss) - self._mean
        self._mean += weight * distance
        self._variance = (1 - weight) * (self._variance + weight * distance * distance)
        return is_spike
