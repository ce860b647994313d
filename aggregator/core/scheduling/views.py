"""What the scheduler reads of jobs and workers, and what it decides."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class State(enum.Enum):
    """What a job does, as the scheduler sees it. A preempted job is queued again, in its old place."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True)
class JobView:
    """A job that has not ended.

    Attributes:
        id: the job's id.
        order: place in the order of submission; smaller is older.
        state: whether it waits, runs or is paused.
        priority: higher comes first.
        min_workers: least number of workers with which it computes.
        max_workers: largest number of workers it can use.
        row_workers: workers of a row of its pipeline; 1 without a pipeline.
        preemptible: whether jobs that come first may stop it.
        remaining_seconds: estimate of its time left with its present workers, or with those it had last.
        short_seconds: Time since it has fewer than `min_workers`; else, since a row of it lacks a worker; 0 if neither.
        blocked: what else it waits for before it may start, such as memory; empty if nothing.
    """

    id: str
    order: int
    state: State = State.QUEUED
    priority: int = 0
    min_workers: int = 1
    max_workers: int = 1
    row_workers: int = 1
    preemptible: bool = True
    remaining_seconds: float | None = None
    short_seconds: float = 0.0
    blocked: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Place in the order of all jobs: by priority, then by age. The smallest comes first."""
        return -self.priority, self.order

    @property
    def least(self) -> int:
        """`min_workers`, in whole rows."""
        return -(-self.min_workers // self.row_workers) * self.row_workers

    @property
    def most(self) -> int:
        """`max_workers`, in whole rows."""
        return max(self.least, self.max_workers - self.max_workers % self.row_workers)


@dataclass(frozen=True)
class WorkerView:
    """A connected worker.

    Attributes:
        id: the worker's id.
        job: the job that it serves, or is on its way to; empty for none.
        unfit: the jobs that it is known not to fit, each with the reason.
        excluded: whether it gives no work to any job. It stays where it is.
        held: whether it may not leave its job now, for example because it verifies.
        move_seconds: measured time from one job's last work to the next one's first.
        settled: whether it has built the job that it serves.
    """

    id: str
    job: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict)
    excluded: bool = False
    held: bool = False
    move_seconds: float = 0.0
    settled: bool = False


@dataclass(frozen=True)
class Settings:
    """What an operator sets.

    Attributes:
        max_running_jobs: largest number of jobs that run at a time.
        comeback_seconds: time for which a job keeps its workers while it has too few.
        payback_seconds: time within which the move of a worker must pay.
    """

    max_running_jobs: int
    comeback_seconds: float
    payback_seconds: float = 600.0


@dataclass(frozen=True)
class Wait:
    """Why a job has no workers.

    Attributes:
        position: place among the jobs that wait; 1 is the first.
        reason: what it waits for.
        start_seconds: estimated time until it starts, if no other job comes; None if unknown.
    """

    position: int
    reason: str
    start_seconds: float | None = None


@dataclass(frozen=True)
class Decision:
    """Which worker serves which job from now on.

    Attributes:
        assignment: the job of each worker; empty for none.
        starts: queued jobs that start, those that come first before others.
        requeued: running jobs that return all workers and wait again: preempted, or for too long short of workers.
        waits: the jobs that wait, in the order in which they come.
    """

    assignment: dict[str, str]
    starts: tuple[str, ...]
    requeued: tuple[str, ...]
    waits: dict[str, Wait]
