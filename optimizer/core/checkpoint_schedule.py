"""Decides when jobs' checkpoints are taken: when they are due, one at a time, with retries where needed. Pure."""

from __future__ import annotations

from optimizer.core.events import OptimizerOutbox, RetryLater, SaveFailed, Snapshot
from optimizer.core.open_job import OpenJob
from protos import cluster_pb2 as pb
from services.errors import Refusal

SPACE_RETRY_SECONDS = 5.0
"""Pause between two attempts to write a checkpoint that a job needs, while the disk is full."""


class CheckpointSchedule:
    """Schedule of the checkpoints of all jobs.

    One is written at a time, since its copy of the tensors takes memory. The job whose checkpoint has been due the
    longest comes next. That of a job that has ended may still be on its way to the disk.

    Args:
        out: outbox for effects.

    Attributes:
        now_seconds: time of the newest measurement, by a monotonic clock.
    """

    def __init__(self, out: OptimizerOutbox) -> None:
        self._out = out
        self.now_seconds = 0.0
        self._due: dict[str, OpenJob] = {}  # by job id, the longest due first
        self._writing: Snapshot | None = None  # of any job and generation
        self._writing_job_ended = False

    @property
    def writes(self) -> bool:
        """Whether a checkpoint is being written, of any job."""
        return self._writing is not None

    def is_writing_job(self, job: str) -> bool:
        """Return whether a checkpoint of a job is being written, of any generation."""
        return self._writing is not None and self._writing.job == job

    def is_writing(self, job: OpenJob) -> bool:
        """Return whether a checkpoint of this job is being written, taken since it was opened."""
        return self._writing is not None and job.owns(self._writing.job, self._writing.generation)

    def lacks_newest(self, job: OpenJob) -> bool:
        """Return whether a step was committed since the newest checkpoint, the one that is being written included."""
        return job.has_unsaved_step and self._writing != Snapshot(job.job, job.generation, job.step)

    def is_due(self, job: OpenJob) -> bool:
        """Return whether a checkpoint of this job is to be taken as soon as weights and disk allow it."""
        return job.job in self._due

    def set_due(self, job: OpenJob, due: bool) -> None:
        """Set whether a checkpoint of this job is due; one that is due already keeps its turn."""
        if due:
            self._due.setdefault(job.job, job)
        else:
            self._due.pop(job.job, None)

    def job_ended(self, job: OpenJob) -> None:
        """Note that the job ended: a checkpoint of it that is being written is reported all the same."""
        if self.is_writing(job):
            self._writing_job_ended = True

    def step_completed(self, job: OpenJob) -> None:
        """Request a checkpoint if the completed step calls for one."""
        if job.plan.checkpoints_at(job.step) or self._interval_passed(job):
            self.request(job)

    def request(self, job: OpenJob) -> None:
        """Have a checkpoint taken as soon as those that were due before are on disk: no step waits for the disk.

        It is missed if the job's own last one is not on disk, or not even begun: then one of newer weights follows.
        """
        if self._writing is not None and (self.is_writing_job(job.job) or self.is_due(job)):
            other = "" if self.is_writing_job(job.job) else f" of job {self._writing.job}"
            text = f"the checkpoint of step {self._writing.step}{other} is still being written; the next one follows it"
            self._report_missed(job, job.step, text)
        self.set_due(job, True)
        receiving = job.state == pb.OptimizerStatus.RECEIVING
        job.checkpoint_timer_seconds = None if receiving else self.now_seconds

    def start_next(self) -> str | None:
        """Start the checkpoint that has been due the longest, unless one is being written.

        One that waits for space, or whose job has failed, is passed over. One whose weights are being updated is waited
        for, since an update takes less time than a checkpoint.

        Returns:
            The id of its job; None if none was started.
        """
        if self._writing is not None or not self._due:
            return None
        ready = (
            each for each in self._due.values() if each.failure_reason is None and not each.waits_for_space
        )
        job = next(ready, None)
        if job is None or not job.is_consistent:
            return None
        del self._due[job.job]
        self._writing = Snapshot(job.job, job.generation, job.step)
        self._out.put(self._writing)
        return job.job

    def finish(self, answer: pb.CheckpointWritten | SaveFailed) -> bool:
        """Note that the checkpoint being written was completed or failed.

        Returns:
            Whether its job has ended in the meantime. False also for an answer that was not awaited.
        """
        if self._writing != Snapshot(answer.job, answer.generation, answer.step):
            return False
        job_ended, self._writing, self._writing_job_ended = self._writing_job_ended, None, False
        return job_ended

    def handle_failure(self, job: OpenJob, event: SaveFailed) -> Refusal | None:
        """Return why the job fails without this checkpoint; None if it goes on or the checkpoint is tried again.

        The job cannot resume, or has no result, without its first and its last checkpoint. While the disk is full they
        are tried until there is space. After any other error they are tried twice.
        """
        failed_before = job.failed_checkpoint_step == event.step
        job.failed_checkpoint_step = event.step
        if job.plan.stops_without_checkpoint:
            return Refusal(f"{event.reason} (checkpoint.on_error: stop)")
        if event.step not in (0, job.plan.steps):
            self._report_missed(job, event.step, event.reason)
        elif event.out_of_space:
            if not failed_before:
                text = f"{event.reason}; trying again every {SPACE_RETRY_SECONDS:g} s until there is space"
                self._report_missed(job, event.step, text)
            job.waits_for_space = True
            self.set_due(job, True)
            self._out.put(RetryLater(job.job, SPACE_RETRY_SECONDS))
        elif failed_before:
            return Refusal(f"{event.reason} (tried twice; a job needs its first and last checkpoint)")
        else:
            self.set_due(job, True)
        return None

    def _interval_passed(self, job: OpenJob) -> bool:
        """Return whether `checkpoint_seconds` have passed since the last checkpoint or the first step seen here."""
        if job.checkpoint_timer_seconds is None:
            job.checkpoint_timer_seconds = self.now_seconds
        return 0 < job.plan.checkpoint_seconds <= self.now_seconds - job.checkpoint_timer_seconds

    def _report_missed(self, job: OpenJob, step: int, reason: str) -> None:
        self._out.send(pb.CheckpointMissed(job=job.job, generation=job.generation, step=step, reason=reason))
