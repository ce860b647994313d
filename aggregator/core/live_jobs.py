"""The jobs that have not ended, and which of them is next."""

from __future__ import annotations

from collections.abc import Container, Iterable

from aggregator.core.events import Note, NoticeKind, Outbox, SaveJob, Submitted, ToOptimizer
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
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.setting_aside import is_crash_suspect, is_suspect, seconds_until_start, why_set_aside
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, RUNNING, Job
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
        suspended: ids of the jobs that don't run, and are open at the connected optimizer all the same.
    """

    def __init__(self, records: Iterable[Record], max_parameters: int, out: Outbox) -> None:
        self.records = {record.job.id: record for record in records}
        self.suspended: set[str] = set()
        self._max_parameters = max_parameters
        self._out = out

    def add(self, submitted: Submitted) -> None:
        """Append a job, unless it is known."""
        job = submitted.job
        if job.id in self.records:
            return
        self.records[job.id] = Record(copy_job(job), submitted.spec_json, submitted.plan, submitted.needs)
        self._out.put(Note("state", f"queued: {job.name}", copy_job(job)))

    def cancel(self, job: str, *, checkpoint: bool) -> None:
        """Remove a job that does not run, if there is such a one; perhaps with a checkpoint of its last COMMIT."""
        record = self.records.pop(job, None)
        if record is not None:
            self.close(job, checkpoint=checkpoint)
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

    def exclude(self, record: Record, worker: str, reason: str) -> None:
        """Exclude a worker, which another job has found faulty, from a job that does not run."""
        Exclusions(record.job).add_found_elsewhere(worker, reason)
        self._out.put(SaveJob(copy_job(record.job)))

    def note_checked(self, workers: Iterable[str], checked_by: str) -> None:
        """Note that a job has checked workers: they have done right what they gave others before."""
        for job, record in self.records.items():
            for worker in workers if job != checked_by else ():
                record.job.trusted_steps.pop(worker, None)

    def startable(self, runs: Container[str]) -> list[tuple[Record, JobPlan]]:
        """Return the jobs that wait for their start, with their plans: those that ran before first. End hopeless ones.

        Args:
            runs: ids of the jobs that run.
        """
        found = []
        for record in list(self.records.values()):
            plan = record.plan
            if record.job.id in runs or record.job.state == PAUSED:
                continue
            if record.job.pausing:
                self._finish_pause(record)
            elif isinstance(plan, Refusal):
                self.set_aside(record, plan)
            elif (refusal := plan.parameters.check_most(self._max_parameters)) is not None:
                self.set_aside(record, refusal)  # it was queued when the maximum was larger
            elif (refusal := why_set_aside(record.job)) is not None:
                self.set_aside(record, refusal)
            else:
                found.append((record, plan))
        return sorted(found, key=lambda each: (each[0].job.state != RUNNING, -each[0].job.priority))

    def _finish_pause(self, record: Record) -> None:
        """Pause a job that was about to be paused when the aggregator before this one ended."""
        end_job(record.job, PAUSED, PAUSED_BY_REQUEST)
        self._out.put(SaveJob(copy_job(record.job)))
        self._out.put(Note("state", record.job.detail, copy_job(record.job)))

    def set_aside(self, record: Record, refusal: Refusal) -> None:
        """End a job that can't be started, or that took the aggregator down too often."""
        del self.records[record.job.id]
        self.close(record.job.id)
        end_job(record.job, FAILED, refusal.reason)
        self._out.put(SaveJob(copy_job(record.job)))
        self._out.put(Note("state", f"failed: {record.job.detail}", copy_job(record.job)))

    # ---- suspended jobs ----

    def note_open(self, job: str) -> bool:
        """Note that the optimizer has a job open that does not run; return whether that is news.

        A job that has ended is closed, since the Close at its end got lost; that is no news.
        """
        if job in self.suspended:
            return False
        self.suspended.add(job)
        if job not in self.records:
            self.close(job)
        return job in self.suspended

    def close(self, job: str, *, checkpoint: bool = True) -> None:
        """Have the optimizer close a job that does not run, if it is open there."""
        if job in self.suspended:
            self.suspended.remove(job)
            self._out.put(ToOptimizer(pb.Close(job=job, checkpoint=checkpoint)))

    def rank_suspended(self) -> list[str]:
        """Return the jobs that are open and don't run: first those that wait for their start, in their order."""
        found = [record.job for job, record in self.records.items() if job in self.suspended]
        return [each.id for each in sorted(found, key=lambda job: (job.state == PAUSED, -job.priority))]

    # ---- what jobs wait for ----

    def describe_probation(self, runs: Container[str], lived_seconds: float) -> dict[str, str]:
        """Return what jobs wait for that the aggregator may have died of, by job.

        They start one at a time, so that the next death tells which of them is at fault.

        Args:
            runs: ids of the jobs that run.
            lived_seconds: how long the aggregator lives.
        """
        found = {}
        suspects = [each.job for each in self.records.values() if is_suspect(each.job)]
        for place, job in enumerate(suspects):
            seconds = seconds_until_start(place, lived_seconds)
            if seconds and job.id not in runs:
                died = f"the aggregator died {counted(job.starts, 'time')} soon after it started this job"
                found[job.id] = f"job {job.id} starts in {seconds:.0f} s: {died}"
        crashed = [each.job for each in self.records.values() if is_crash_suspect(each.job)]
        first = next((each for each in crashed if each.id in runs), next(iter(crashed), None))
        for job in crashed:
            if first is not None and job.id not in runs and job.id != first.id:
                text = f"the aggregator failed {counted(first.crash.count, 'time')} there while both ran"
                found[job.id] = (
                    f"job {job.id} starts once job {first.id} is past step {first.crash.step}: {text}"
                )
        return found

    # ---- late checkpoints ----

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
            text = describe_missed_checkpoint(outcome)
            self._out.put(Note("checkpoint", text, copy_job(job), tells=NoticeKind.DISK_LOW))
            return
        set_checkpoint(job, outcome)
        self._out.put(SaveJob(copy_job(job)))
        self._out.put(Note("checkpoint", describe_checkpoint(outcome), copy_job(job)))
