"""Places in the queue: how many jobs come before a job, what it waits for, and when it presumably starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aggregator.core.job_report import Record
from aggregator.core.pace import estimate_seconds_left
from protos.jobs_pb2 import Job
from services.printable import counted
from services.protocol.plan import JobPlan


class QueuePlace(NamedTuple):
    """The place of a queued job.

    Attributes:
        position: its place, from 1.
        waiting: one line on what it waits for.
        start_seconds: time until it presumably starts; None if that is unknown.
    """

    position: int
    waiting: str
    start_seconds: float | None


def find_places(queue: Sequence[Record], running: Job | None, hindrance: str | None) -> dict[str, QueuePlace]:
    """Return the place of each queued job, by id.

    A job's start is known if all jobs before it have made steps, whose measured time says how long the others take.

    Args:
        queue: the queued jobs, in the order in which they start.
        running: the running job; None if there is none.
        hindrance: why no job may start now; None if one may.
    """
    places = {}
    free_seconds: float | None = 0.0
    if running is not None:
        free_seconds = running.seconds_left if running.HasField("seconds_left") else None
    for position, record in enumerate(queue, 1):
        if position > 1:
            waiting = f"waits for {counted(position - 1, 'job')} before it"
        elif running is not None:
            waiting = f"waits for job {running.id} to end"
        else:
            waiting = hindrance or ""
        places[record.job.id] = QueuePlace(position, waiting, free_seconds)
        duration = _duration_seconds(record)
        free_seconds = None if free_seconds is None or duration is None else free_seconds + duration
    return places


def _duration_seconds(record: Record) -> float | None:
    """Return how long a queued job that has run before presumably takes; None if it is unknown."""
    job = record.job
    if not job.step_seconds or not isinstance(record.plan, JobPlan):
        return None
    return estimate_seconds_left(record.plan, job.step, job.step_seconds, job.evaluation_seconds)
