"""The jobs that have not ended, and which of them is next."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator.core.events import Note, Outbox, SaveJob, Submitted
from aggregator.core.job_report import (
    PAUSED_BY_REQUEST,
    Record,
    cancel_job,
    copy_job,
    describe_checkpoint,
    describe_missed_checkpoint,
    end_job,
    pause_job,
    resume_job,
    set_checkpoint,
)
from aggregator.core.membership.claims import is_void
from aggregator.core.setting_aside import seconds_until_start, why_set_aside
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, QUEUED, RUNNING, Job
from services.errors import Refusal
from services.printable import counted
from services.protocol.plan import JobPlan
from services.protocol.versions import Version


class LiveJobs:
    """The queued, running and paused jobs of an aggregator. Those that have ended are on disk only.

    Args:
        records: the jobs, in order of submission.
        max_parameters: maximum number of parameters of a job's model.
        out: takes the effects.

    Attributes:
        records: the jobs by id, in order of submission.
    """

    def __init__(self, records: Iterable[Record], max_parameters: int, out: Outbox) -> None:
        self.records = {record.job.id: record for record in records}
        self._max_parameters = max_parameters
        self._out = out

    def add(self, submitted: Submitted) -> None:
        """Append a job, unless it is known."""
        job = submitted.job
        if job.id in self.records:
            return
        self.records[job.id] = Record(copy_job(job), submitted.spec_json, submitted.plan)
        self._out.put(Note("state", f"queued: {job.name}", copy_job(job)))

    def cancel(self, job: str) -> None:
        """Remove a job that does not run, if there is such a one."""
        record = self.records.pop(job, None)
        if record is not None:
            cancel_job(record.job)
            self._out.put(Note("state", "cancelled", copy_job(record.job)))

    def pause(self, job: str) -> None:
        """Pause a job that waits for its start, if there is such a one."""
        record = self.records.get(job)
        if record is not None:
            pause_job(record.job)
            self._out.put(Note("state", PAUSED_BY_REQUEST, copy_job(record.job)))

    def resume(self, job: str) -> None:
        """Queue a paused job, if there is such a one. It has kept its place in the order of submission."""
        record = self.records.get(job)
        if record is not None:
            resume_job(record.job)
            self._out.put(Note("state", f"queued: {record.job.name}", copy_job(record.job)))

    def set_priority(self, job: str, priority: int) -> None:
        """Change the priority of a job, if there is such a one."""
        record = self.records.get(job)
        if record is not None:
            record.job.priority = priority
            self._out.put(Note("state", f"priority {priority}", copy_job(record.job)))

    def queue(self) -> list[Record]:
        """Return the queued jobs in the order in which they start: higher priorities first, then older jobs."""
        queued = [each for each in self.records.values() if each.job.state == QUEUED]
        return sorted(queued, key=lambda each: -each.job.priority)  # stable: older ones stay first

    def next(self) -> Record | None:
        """Return the job that was running when the previous epoch ended, else the first one in the queue."""
        waiting = (each for each in self.records.values() if each.job.state != PAUSED)
        return min(waiting, key=lambda each: (each.job.state != RUNNING, -each.job.priority), default=None)

    def take_next(self, lived_seconds: float) -> tuple[Record, JobPlan] | None:
        """Return the next job with its plan; None if there is none, or if it must wait. End those that can't run.

        Args:
            lived_seconds: how long the aggregator lives.
        """
        while (record := self.next()) is not None:
            plan = record.plan
            if record.job.pausing:
                self._finish_pause(record)
            elif isinstance(plan, Refusal):
                self._set_aside(record, plan)
            elif (refusal := plan.parameters.check_most(self._max_parameters)) is not None:
                self._set_aside(record, refusal)  # it was queued when the maximum was larger
            elif (refusal := why_set_aside(record.job)) is not None:
                self._set_aside(record, refusal)
            elif seconds_until_start(record.job, lived_seconds):
                return None
            else:
                return record, plan
        return None

    def _finish_pause(self, record: Record) -> None:
        """Pause a job that was about to be paused when the aggregator before this one ended."""
        end_job(record.job, PAUSED, PAUSED_BY_REQUEST)
        self._out.put(SaveJob(copy_job(record.job)))
        self._out.put(Note("state", record.job.detail, copy_job(record.job)))

    def _set_aside(self, record: Record, refusal: Refusal) -> None:
        """End a job that can't be started, or that took the aggregator down too often."""
        del self.records[record.job.id]
        end_job(record.job, FAILED, refusal.reason)
        self._out.put(SaveJob(copy_job(record.job)))
        self._out.put(Note("state", f"failed: {record.job.detail}", copy_job(record.job)))

    def describe_probation(self, lived_seconds: float) -> str | None:
        """Return one line on what the next job waits for before its start; None for nothing."""
        record = self.next()
        seconds = seconds_until_start(record.job, lived_seconds) if record is not None else 0.0
        if record is None or not seconds:
            return None
        return (
            f"job {record.job.id} starts in {seconds:.0f} s: the aggregator died "
            f"{counted(record.job.starts, 'time')} soon after it started this job"
        )

    def record_late_checkpoint(
        self, record: Job, outcome: pb.CheckpointWritten | pb.CheckpointMissed
    ) -> None:
        """Record a checkpoint of a job that has ended, since an older one in its record may be deleted by now.

        If it could not be written, say so in the job's log.
        """
        if record.id not in self.records:
            self._record_outcome(copy_job(record), outcome)

    def record_checkpoint(self, outcome: pb.CheckpointWritten | pb.CheckpointMissed) -> None:
        """Record a checkpoint of a job that does not run now, in the same way."""
        record = self.records.get(outcome.job)
        if record is None or not record.job.started_seconds:
            return
        if not is_void(record.job, Version(outcome.generation, outcome.step)):
            self._record_outcome(record.job, outcome)

    def _record_outcome(self, job: Job, outcome: pb.CheckpointWritten | pb.CheckpointMissed) -> None:
        if job.checkpoint and outcome.step <= job.checkpoint_step:
            return
        if isinstance(outcome, pb.CheckpointMissed):
            self._out.put(Note("checkpoint", describe_missed_checkpoint(outcome), copy_job(job)))
            return
        set_checkpoint(job, outcome)
        self._out.put(SaveJob(copy_job(job)))
        self._out.put(Note("checkpoint", describe_checkpoint(outcome), copy_job(job)))
