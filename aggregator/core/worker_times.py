"""The time of workers by what they did with it: of all of them within the last hour, and of those of each job.

It is fed by transitions. A worker that is given a lease counts as computing until it reports how long it has computed
for. What that report leaves of the time was spent waiting for the wire. So the sum of all activities is the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.protocol.activities import IDLE, OF_JOB, Activity

MINUTES = 60
"""Number of minutes of all workers' time that are kept, the one under way included."""


@dataclass(frozen=True)
class _Span:
    """An activity that goes on, for which job (empty for none), and since when."""

    activity: Activity
    job: str
    since_seconds: float


class WorkerTimes:
    """The account of the workers' time."""

    def __init__(self) -> None:
        self._spans: dict[int, _Span] = {}
        self._minutes: dict[int, defaultdict[Activity, float]] = {}
        self._jobs: dict[str, defaultdict[Activity, float]] = {}

    @property
    def sessions(self) -> Iterable[int]:
        """Sessions of the workers whose time is counted."""
        return self._spans.keys()

    def find(self, session: int) -> Activity | None:
        """Return what a worker does; None for an unknown one."""
        span = self._spans.get(session)
        return None if span is None else span.activity

    def begin_job(self, job: str, known: Mapping[str, float]) -> None:
        """Count the time of a job's workers from now on.

        Args:
            job: the job's id.
            known: the time that was counted before, by another aggregator.
        """
        activities = {each.value: each for each in OF_JOB}
        self._jobs[job] = defaultdict(
            float, {activities[name]: each for name, each in known.items() if name in activities}
        )

    def end_job(self, job: str, now: float) -> None:
        """Forget the time of a job's workers."""
        for session, span in list(self._spans.items()):
            if span.job == job:
                self.note(session, Activity.NO_JOB, now)
        del self._jobs[job]

    def note(
        self,
        session: int,
        activity: Activity,
        now: float,
        computed_seconds: float | None = None,
        *,
        job: str = "",
    ) -> None:
        """Note what a worker does from now on.

        Args:
            session: the worker's session.
            activity: what it does.
            now: the time.
            computed_seconds: how long it says that it has computed, at the end of a lease; None if it says nothing.
            job: the job that it does it for; empty for none.
        """
        span = self._spans.get(session)
        if span is not None:
            if (span.activity, span.job) == (activity, job) and computed_seconds is None:
                return
            self._settle(span, now, computed_seconds)
        self._spans[session] = _Span(activity, job, now)

    def drop(self, session: int, now: float) -> None:
        """Note that a worker is gone."""
        span = self._spans.pop(session, None)
        if span is not None:
            self._settle(span, now, None)

    def of_job(self, job: str, now: float) -> dict[str, float]:
        """Return the time of a job's workers, by activity."""
        found = defaultdict(float, self._jobs.get(job, {}))
        for span in self._spans.values():
            if span.job == job and span.activity in OF_JOB:
                found[span.activity] += max(0.0, now - span.since_seconds)
        return _by_name(found)

    def last_hour(self, now: float) -> dict[str, float]:
        """Return the time of all workers within the last hour, by activity."""
        first = _minute(now) - MINUTES + 1
        found: defaultdict[Activity, float] = defaultdict(float)
        for minute, counted in self._minutes.items():
            if minute >= first:
                for activity, seconds in counted.items():
                    found[activity] += seconds
        for span in self._spans.values():
            found[span.activity] += max(0.0, now - max(span.since_seconds, 60.0 * first))
        return _by_name(found)

    def count_idle(self) -> dict[str, int]:
        """Return how many workers are idle now, by reason; reasons that no worker has are there too."""
        now = [span.activity for span in self._spans.values()]
        return {each.value: now.count(each) for each in IDLE}

    def _settle(self, span: _Span, now: float, computed_seconds: float | None) -> None:
        """Book the time of a span up to now; the part of a lease's that was not spent computing comes first."""
        start = span.since_seconds
        if computed_seconds is not None and span.activity is Activity.COMPUTING:
            begun = min(max(start, now - computed_seconds), now)
            self._book(Activity.WIRE, span.job, start, begun)
            start = begun
        self._book(span.activity, span.job, start, now)

    def _book(self, activity: Activity, job: str, start: float, end: float) -> None:
        if end <= start:
            return
        if activity in OF_JOB and job in self._jobs:
            self._jobs[job][activity] += end - start
        last = _minute(end)
        for minute in [each for each in self._minutes if each <= last - MINUTES]:
            del self._minutes[minute]
        for minute in range(max(_minute(start), last - MINUTES + 1), last + 1):
            seconds = min(end, 60.0 * (minute + 1)) - max(start, 60.0 * minute)
            self._minutes.setdefault(minute, defaultdict(float))[activity] += seconds


def _minute(seconds: float) -> int:
    return int(seconds // 60)


def _by_name(counted: Mapping[Activity, float]) -> dict[str, float]:
    return {activity.value: seconds for activity, seconds in sorted(counted.items()) if seconds > 0}
