"""What people ask for: jobs that they submit, cancel, pause, resume or reorder, and workers that they trust."""

from __future__ import annotations

from typing import TypeAlias

from aggregator.core.events import (
    CancelRequested,
    PauseRequested,
    PriorityRequested,
    ResumeRequested,
    Submitted,
    TrustRequested,
)
from aggregator.core.job_runs import JobRuns
from aggregator.core.membership.claims import trust
from protos.jobs_pb2 import CANCELLED

Request: TypeAlias = (
    Submitted | CancelRequested | PauseRequested | ResumeRequested | PriorityRequested | TrustRequested
)
"""A request, which is on disk."""


def take_request(runs: JobRuns, request: Request, now: float) -> None:
    """Do what a person asks for, with a job that runs or one that does not.

    Args:
        runs: the running jobs.
        request: the request; its job may have ended meanwhile.
        now: the time, on the monotonic clock.
    """
    match request:
        case Submitted():
            runs.jobs.add(request)
        case CancelRequested():
            _cancel(runs, request)
            return  # the end of its run has workers be shared out again
        case TrustRequested():
            _trust(runs, request, now)
            return
        case PauseRequested():
            _pause(runs, request.job, now)
        case ResumeRequested():
            _resume(runs, request.job)
        case PriorityRequested():
            runs.jobs.set_priority(request.job, request.priority)
    runs.assignments.note_change()


def _cancel(runs: JobRuns, request: CancelRequested) -> None:
    run = runs.by_id.get(request.job)
    if run is not None:
        with runs.guard(run):
            run.end(CANCELLED, "cancelled by request", checkpoint=not request.now)
    else:
        runs.jobs.cancel(request.job, checkpoint=not request.now)


def _pause(runs: JobRuns, job: str, now: float) -> None:
    run = runs.by_id.get(job)
    if run is not None:
        with runs.guard(run):
            run.pause(now)
    else:
        runs.jobs.pause(job)


def _resume(runs: JobRuns, job: str) -> None:
    run = runs.by_id.get(job)
    if run is not None:
        with runs.guard(run):
            run.resume()
    else:
        runs.jobs.resume(job)


def _trust(runs: JobRuns, request: TrustRequested, now: float) -> None:
    run, record = runs.by_id.get(request.job), runs.jobs.records.get(request.job)
    if run is not None:
        with runs.guard(run):
            run.trust(request.worker, now)
    elif record is not None:
        trust(record.job, request.worker)  # it was running, and waits for its start
