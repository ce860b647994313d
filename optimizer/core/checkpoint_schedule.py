"""When a job's checkpoints are made: as they are due, one at a time, and again where one can't be missed. Pure."""

from __future__ import annotations

from optimizer.core.events import Outbox, SaveFailed, Snapshot
from optimizer.core.open_job import OpenJob
from protos import cluster_pb2 as pb


class CheckpointSchedule:
    """Those of the job that is open; one of the job before it may still be on its way to the disk.

    Args:
        out: takes effects.

    Attributes:
        now_seconds: when the newest step was measured, by a clock that never goes back.
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self.now_seconds = 0.0
        self._writing: Snapshot | None = None  # on its way to the disk, of whatever job and generation
        self._left: Snapshot | None = None  # of a job that ended while it was on its way

    def is_written_of(self, job: OpenJob) -> bool:
        """Whether one of the job as it is is on its way to the disk."""
        return self._writing is not None and job.made(self._writing.job, self._writing.generation)

    def leave(self, job: OpenJob) -> None:
        """The job has ended, but not what is being written of it: that counts all the same."""
        if self.is_written_of(job):
            self._left = self._writing

    def stepped(self, job: OpenJob) -> None:
        """All weights are those of a new step."""
        if job.plan.checkpoints_at(job.step) or self._time_is_up(job):
            self.due(job)
        else:
            self.make_if_free(job)

    def due(self, job: OpenJob) -> None:
        """Have one made, now or when the one before has been written: no step waits for the disk."""
        job.due = True
        job.counting_since_seconds = None if job.state == pb.OptimizerStatus.RECEIVING else self.now_seconds
        before = self._writing
        if before is not None:
            text = (
                f"that of step {before.step} is still being written; one follows as soon as the disk is free"
            )
            self._say_missed(job, job.step, text)
        self.make_if_free(job)

    def make_if_free(self, job: OpenJob | None) -> None:
        """Make the one that is due, if none is being written and the weights rest."""
        if job is None or job.broken or not job.due or self._writing is not None or not job.rests:
            return
        job.due = False
        self._writing = Snapshot(job.job, job.generation, job.step)
        self._out.put(self._writing)

    def answered(self, answer: pb.CheckpointWritten | SaveFailed) -> bool:
        """What was on its way to the disk is there, or never will be; whether its job had ended."""
        answered = Snapshot(answer.job, answer.generation, answer.step)
        if self._writing != answered:
            return False
        left, self._writing, self._left = self._left == answered, None, None
        return left

    def why_not_without(self, job: OpenJob, event: SaveFailed) -> str:
        """Why the job can't go on without a checkpoint of its own; empty if it does, or has it made again."""
        again = job.failed_step == event.step
        job.failed_step = event.step
        if job.plan.stops_without_checkpoint:
            return f"{event.reason} (checkpoint.on_error: stop)"
        if event.step not in (0, job.plan.steps):
            self._say_missed(job, event.step, event.reason)
        elif again:
            return f"{event.reason} (tried twice; a job needs its first and last one)"
        else:
            job.due = True
        return ""

    def _time_is_up(self, job: OpenJob) -> bool:
        """Whether one is due by the minutes since the one before, or since the job's first step here."""
        if job.counting_since_seconds is None:
            job.counting_since_seconds = self.now_seconds
        return 0 < job.plan.checkpoint_seconds <= self.now_seconds - job.counting_since_seconds

    def _say_missed(self, job: OpenJob, step: int, reason: str) -> None:
        self._out.say(pb.CheckpointMissed(job=job.job, generation=job.generation, step=step, reason=reason))
