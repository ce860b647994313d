"""The disk of a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aggregator.core.events import SaveJob
from aggregator.core.job_report import Record
from optimizer.core.open_job import is_void
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import QUEUED, RUNNING, Job
from services.checkpoints.prune import surplus_steps


@dataclass
class Disk:
    """What survives the death of processes.

    Attributes:
        epoch: of the aggregator that started last.
        obeyed_epoch: the highest that an optimizer of its own process has obeyed.
    """

    epoch: int = 0
    obeyed_epoch: int = 0
    jobs: dict[str, SaveJob] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, list[tuple[pb.CheckpointWritten, tuple[int, ...]]]] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    unfinished: int = 0

    def save(self, effect: SaveJob) -> None:
        """Put a job on disk."""
        self.jobs[effect.job.id] = effect
        self.unfinished = sum(each.job.state in (QUEUED, RUNNING) for each in self.jobs.values())

    def is_running(self, job: str) -> bool:
        """Whether a job runs, by its record."""
        return self.jobs[job].job.state == RUNNING

    def records(self) -> list[Record]:
        """All jobs, oldest first, as a fresh process reads them."""
        return [
            Record(_copy(each.job), each.spec_json, self.plans[name], dict(each.fingerprint))
            for name, each in self.jobs.items()
        ]

    def write_checkpoint(
        self, written: pb.CheckpointWritten, weights: tuple[int, ...], keep_last: int
    ) -> None:
        """Put a checkpoint on disk; it takes the place of one of the same step, and of those that need not stay."""
        kept = [each for each in self.checkpoints.get(written.job, []) if each[0].step != written.step]
        held = sorted([*kept, (written, weights)], key=lambda each: each[0].step)
        gone = surplus_steps([each[0].step for each in held], written.step, keep_last=keep_last, keep_every=0)
        self.checkpoints[written.job] = [each for each in held if each[0].step not in gone]

    def newest_checkpoint(
        self, job: str, void: Iterable[pb.Void] = ()
    ) -> tuple[pb.CheckpointWritten, tuple[int, ...]] | None:
        """The checkpoint of the highest step, of those that count."""
        held = [each for each in self.checkpoints.get(job, []) if not is_void(each[0], void)]
        return max(held, key=lambda each: each[0].step, default=None)


def _copy(job: Job) -> Job:
    copy = Job()
    copy.CopyFrom(job)
    return copy
