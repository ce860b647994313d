"""The end for workers whose process has joined for a job that is over, is unknown, or takes no such process."""

from __future__ import annotations

from aggregator.core.events import Outbox, ToWorker
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.members import Member
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import SUCCEEDED, Job, JobState
from services.printable import printable
from services.protocol.plan import JobPlan

MOST_REMEMBERED = 256
"""Number of ended jobs of which processes are told how they ended, those that ended last."""

_ID_CHARACTERS = 30
"""Longest part of an id that is repeated; those of jobs are shorter."""


class Dismissals:
    """Dismissals of such workers. Those that serve a job are told of its end by its run.

    Args:
        jobs: the jobs that have not ended.
        out: takes the effects.
    """

    def __init__(self, jobs: LiveJobs, out: Outbox) -> None:
        self._jobs = jobs
        self._out = out
        self._ended: dict[str, tuple[JobState, str]] = {}

    def note_end(self, job: Job) -> None:
        """Remember how a job has ended."""
        self._ended.pop(job.id, None)
        self._ended[job.id] = (job.state, job.detail)
        while len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def check(self, member: Member) -> None:
        """Dismiss a worker if its process has joined for a job that it can't compute, now or later."""
        if not member.external_job or member.job:
            return
        record = self._jobs.records.get(member.external_job)
        if record is None:
            self._dismiss(member, *self._describe_end(member.external_job))
        elif isinstance(record.plan, JobPlan) and not record.plan.external:
            reason = "its model_type is not external, so processes can't join; submit a job with model_type: external"
            self._dismiss(member, f"job {record.job.id}: {reason}", succeeded=False)

    def _describe_end(self, job: str) -> tuple[str, bool]:
        state, detail = self._ended.get(job, (None, ""))
        if state is None:
            name = printable(job, _ID_CHARACTERS)
            return f"job {name}: not queued, running or paused; `tiermesh jobs --all` lists all jobs", False
        return (
            f"job {job}: {JobState.Name(state).lower()}{f': {detail}' if detail else ''}",
            state == SUCCEEDED,
        )

    def _dismiss(self, member: Member, reason: str, succeeded: bool) -> None:
        job = printable(member.external_job, _ID_CHARACTERS)
        leave = pb.Leave(job=job, reason=reason, final=True, succeeded=succeeded)
        self._out.put(ToWorker(member.session, leave))
