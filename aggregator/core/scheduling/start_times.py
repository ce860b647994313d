"""Estimates of when waiting jobs start."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from aggregator.core.scheduling.views import JobView, WorkerView


class StartTimes:
    """When each worker, and each place of a running job, is free for the jobs that wait.

    Jobs are added in the order in which they come. Each is expected to keep what it has until its estimated end.

    Args:
        places: largest number of running jobs.
    """

    def __init__(self, places: int) -> None:
        self._places = [0.0] * places
        self._free_seconds: dict[str, float] = {}

    def take_place(self, job: JobView) -> None:
        """Note that a job runs."""
        if self._places:
            heapq.heapreplace(self._places, seconds_left(job))

    def take_workers(self, job: JobView, workers: Iterable[WorkerView]) -> None:
        """Note that a running job has these workers."""
        until = seconds_left(job)
        for each in workers:
            self._free_seconds[each.id] = max(self._free_seconds.get(each.id, 0.0), until)

    def expect(self, job: JobView, fitting: Sequence[WorkerView]) -> float | None:
        """Return the seconds until a waiting job has enough of the workers that fit it; None if unknown.

        Jobs that are added later find the place and the workers taken.
        """
        free_seconds = self._free_seconds
        soonest = sorted(fitting, key=lambda each: free_seconds.get(each.id, 0.0))[: job.least]
        start = max([free_seconds.get(soonest[-1].id, 0.0), *self._places[:1]])
        until = start + seconds_left(job)
        for each in soonest:
            free_seconds[each.id] = until
        if self._places:
            heapq.heapreplace(self._places, until)
        return start if math.isfinite(start) else None


def seconds_left(job: JobView) -> float:
    """Return the estimate of a job's time left; infinite if there is none."""
    return math.inf if job.remaining_seconds is None else job.remaining_seconds
