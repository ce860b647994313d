"""Decides when a job's checkpoints are taken: when they are due, one at a time, with retries where needed. Pure."""

from __future__ import annotations

from optimizer.core.events import OptimizerOutbox, RetryLater, SaveFailed, Snapshot
from optimizer.core.open_job import OpenJob
from protos import cluster_pb2 as pb
from services.errors import Refusal

SPACE_RETRY_SECONDS = 5.0
"""Pause between two attempts to write a checkpoint that a job needs, while the disk is full."""


class CheckpointSchedule:
    """Schedule of the open job's checkpoints.

    A checkpoint of the previous job may still be on its way to the disk. No second one starts before that is done.

    Args:
        out: outbox for effects.

    Attributes:
        now_seconds: time of the newest measurement, by a monotonic clock.
    """

    def __init__(self, out: OptimizerOutbox) -> None:
        self._out = out
        self.now_seconds = 0.0
        self._writing: Snapshot | None = None  # of any job and generation
        self._writing_job_ended = False
        self._waits_for_space = False  # until RetryDue, no checkpoint is started

    @property
    def writes(self) -> bool:
        """Whether a checkpoint is being written, of any job."""
        return self._writing is not None

    def is_writing(self, job: OpenJob) -> bool:
        """Return whether a checkpoint of this job is being written."""
        return self._writing is not None and job.owns(self._writing.job, self._writing.generation)

    def writes_newest(self, job: OpenJob) -> bool:
        """Return whether the checkpoint that is being written is of the job's newest weights."""
        return self._writing == Snapshot(job.job, job.generation, job.step)

    def job_ended(self, job: OpenJob) -> None:
        """Note that the job ended: a checkpoint of it that is being written is reported all the same."""
        if self.is_writing(job):
            self._writing_job_ended = True

    def step_completed(self, job: OpenJob) -> None:
        """Request a checkpoint if the completed step calls for one."""
        if job.plan.checkpoints_at(job.step) or self._interval_passed(job):
            self.request(job)
        else:
            self.start_if_possible(job)

    def request(self, job: OpenJob) -> None:
        """Take a checkpoint now, or as soon as the previous one is on disk: no step waits for the disk."""
        job.checkpoint_due = True
        receiving = job.state == pb.OptimizerStatus.RECEIVING
        job.checkpoint_timer_seconds = None if receiving else self.now_seconds
        if self._writing is not None:
            text = (
                f"the checkpoint of step {self._writing.step} is still being written; the next one follows it"
            )
            self._report_missed(job, job.step, text)
        self.start_if_possible(job)

    def start_if_possible(self, job: OpenJob | None) -> None:
        """Start the checkpoint that is due, if none is being written and all weights are of one step."""
        if job is None or job.failure_reason is not None or not job.checkpoint_due:
            return
        if self._writing is not None or self._waits_for_space or not job.is_consistent:
            return
        job.checkpoint_due = False
        self._writing = Snapshot(job.job, job.generation, job.step)
        self._out.put(self._writing)

    def finish(self, answer: pb.CheckpointWritten | SaveFailed) -> bool:
        """Note that the checkpoint being written was completed or failed.

        Returns:
            Whether its job has ended in the meantime. False also for an answer that was not awaited.
        """
        if self._writing != Snapshot(answer.job, answer.generation, answer.step):
            return False
        job_ended, self._writing, self._writing_job_ended = self._writing_job_ended, None, False
        return job_ended

    def retry(self, job: OpenJob | None) -> None:
        """Start the checkpoint that waited for space."""
        self._waits_for_space = False
        self.start_if_possible(job)

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
            job.checkpoint_due = self._waits_for_space = True
            self._out.put(RetryLater(SPACE_RETRY_SECONDS))
        elif failed_before:
            return Refusal(f"{event.reason} (tried twice; a job needs its first and last checkpoint)")
        else:
            job.checkpoint_due = True
        return None

    def _interval_passed(self, job: OpenJob) -> bool:
        """Return whether `checkpoint_seconds` have passed since the last checkpoint or the first step seen here."""
        if job.checkpoint_timer_seconds is None:
            job.checkpoint_timer_seconds = self.now_seconds
        return 0 < job.plan.checkpoint_seconds <= self.now_seconds - job.checkpoint_timer_seconds

    def _report_missed(self, job: OpenJob, step: int, reason: str) -> None:
        self._out.send(pb.CheckpointMissed(job=job.job, generation=job.generation, step=step, reason=reason))
