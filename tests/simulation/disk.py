"""The disk of a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aggregator.core.events import SaveJob
from aggregator.core.job_report import Record, copy_job
from aggregator.core.setting_aside import note_crashes
from aggregator.core.succession import raise_restored_epoch
from aggregator.storage.schema import LIVE_STATES
from optimizer.core.open_job import is_void
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import RUNNING
from services.checkpoints.prune import surplus_steps


class QueueBackup(NamedTuple):
    """Copy of what the queue has: the epoch and the jobs' records."""

    epoch: int
    jobs: dict[str, SaveJob]


@dataclass
class Disk:
    """State that survives the death of processes.

    Attributes:
        epoch: epoch of the aggregator that started last.
        obeyed_epoch: highest epoch that an optimizer process of its own has obeyed.
    """

    epoch: int = 0
    obeyed_epoch: int = 0
    jobs: dict[str, SaveJob] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, list[tuple[pb.CheckpointWritten, tuple[int, ...]]]] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    unfinished: int = 0

    def save(self, effect: SaveJob) -> None:
        """Write a job's record."""
        self.jobs[effect.job.id] = effect
        self._count_unfinished()

    def _count_unfinished(self) -> None:
        self.unfinished = sum(each.job.state in LIVE_STATES for each in self.jobs.values())

    def back_up_queue(self) -> QueueBackup:
        """Return a copy of the queue as it is now."""
        return QueueBackup(self.epoch, dict(self.jobs))

    def skip_epochs(self, own: int, seen: int, chance: float) -> None:
        """Raise the epoch of a queue that is an older copy above its own and one that was seen elsewhere."""
        self.epoch = raise_restored_epoch(own, seen, chance)

    def restore_queue(self, backup: QueueBackup) -> None:
        """Put a backup in place of the queue. Checkpoints stay."""
        self.epoch = backup.epoch
        self.jobs = dict(backup.jobs)
        self._count_unfinished()

    def note_crash(self, steps: Mapping[str, int], reason: str) -> None:
        """Note in jobs' records that the aggregator failed while it ran them."""
        records = [copy_job(self.jobs[job].job) for job in steps]
        note_crashes(records, reason, steps)
        for record in records:
            self.save(SaveJob(record))

    def is_running(self, job: str) -> bool:
        """Return whether the record says that the job runs."""
        return self.jobs[job].job.state == RUNNING

    def records(self) -> list[Record]:
        """Return the jobs that have not ended, oldest first, as a new process reads them."""
        return [
            Record(copy_job(each.job), name, self.plans[name])
            for name, each in self.jobs.items()
            if each.job.state in LIVE_STATES
        ]

    def write_checkpoint(
        self, written: pb.CheckpointWritten, weights: tuple[int, ...], keep_last: int
    ) -> None:
        """Write a checkpoint. It replaces one of the same step, and those that `keep_last` removes."""
        kept = [each for each in self.checkpoints.get(written.job, []) if each[0].step != written.step]
        stored = sorted([*kept, (written, weights)], key=lambda each: each[0].step)
        gone = surplus_steps(
            [each[0].step for each in stored], written.step, keep_last=keep_last, keep_every=0
        )
        self.checkpoints[written.job] = [each for each in stored if each[0].step not in gone]

    def newest_checkpoint(
        self, job: str, void: Iterable[pb.Void] = ()
    ) -> tuple[pb.CheckpointWritten, tuple[int, ...]] | None:
        """Return the checkpoint of the highest step among the valid ones."""
        stored = [each for each in self.checkpoints.get(job, []) if not is_void(each[0], void)]
        return max(stored, key=lambda each: each[0].step, default=None)
