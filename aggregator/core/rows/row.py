"""A row: the workers that together have a job's whole model, and so hold its leases. Without a pipeline it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.core.membership.members import Member, MemberState
from aggregator.core.rows.forming import Seat, Seats
from protos import cluster_pb2 as pb
from services.pipeline.split import StageRun
from services.printable import printable
from services.protocol.versions import Version

WHOLE_MODEL = StageRun(0, 0)
"""The stages of a worker in a job without a pipeline, as messages have them."""
NAMES_CHARACTERS = 200
"""Longest list of a row's workers."""
MOST_STALLS = 2
"""Number of leases that a row may be late with before weights that it loads count no longer as a sign that it goes on.
Then it gets work only if no other row can do it."""
FORGIVEN_AFTER_STALLS = 10
"""A row is late for the first time again after so many times `stall`, so that one which is late with every other lease
holds up a fifth of the time at most."""


@dataclass
class RowLease:
    """A lease of a row, and what its workers have reported of it.

    Attributes:
        version: version of the weights that it uses.
        computed: reports of workers that have computed their part, by session.
        evaluated: reports of workers that have evaluated their part, by session.
    """

    version: Version
    computed: dict[int, pb.Computed] = field(default_factory=dict)
    evaluated: dict[int, pb.Evaluated] = field(default_factory=dict)


@dataclass(eq=False)
class Row:
    """Workers that together have all stages, unless the row lacks some.

    Attributes:
        id: its id in messages, which no later row of the job has; 0 in a job without a pipeline.
        seats: the sessions of its workers, and their stages.
        workers: its workers, in the same order.
        complete: whether they have all stages, and know each other.
        able: whether it can be given work once it has the weights.
        hangs: whether the device of one of its workers hangs.
        loaded_version: the earliest version that one of its workers has; None if one has no weights.
        leases: the leases that its workers may still work on, by id.
        stalled: whether it took too long over a lease and has not reported work since, or the next weights, once.
        stalls: the number of leases that it took too long over, the first of them not too long ago.
        first_stall_seconds: when it took too long over the first of them, on the monotonic clock.
        in_place: whether its last chunk lay in memory that its only worker shares, and so cost none here.
        lagging: its workers that do not have the newest weights, while others of it do.
        lagging_since_seconds: since when it is these.
    """

    id: int
    seats: Seats
    workers: Sequence[Member]
    complete: bool = False
    able: bool = False
    hangs: bool = False
    loaded_version: Version | None = None
    leases: dict[int, RowLease] = field(default_factory=dict)
    stalled: bool = False
    stalls: int = 0
    first_stall_seconds: float = 0.0
    in_place: bool = False
    lagging: Sequence[Seat] = ()
    lagging_since_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.session = self.seats[0].worker
        """The session of its first worker, by which its leases know it."""
        self.names = tuple(each.name for each in self.workers)

    @property
    def name(self) -> str:
        """The names of its workers."""
        return printable(", ".join(self.names), NAMES_CHARACTERS)

    @property
    def title(self) -> str:
        """What it is, and its name."""
        return f"the row of {self.name}" if len(self.names) > 1 else f"worker {self.name}"

    def stages_of(self, worker: Member) -> StageRun:
        """Return the stages that one of its workers has."""
        return next(seat.stages for seat in self.seats if seat.worker == worker.session)

    # ---- what its workers can do ----

    def refresh(self) -> None:
        """Take account of what its workers can do now."""
        self.able = self.complete and all(each.able for each in self.workers)
        self.hangs = any(each.hangs for each in self.workers)
        versions = [each.loaded_version for each in self.workers if each.loaded_version is not None]
        self.loaded_version = min(versions) if len(versions) == len(self.workers) else None

    @property
    def leaves(self) -> bool:
        """Whether it gets no further work, since one of its workers is to leave the job."""
        return any(each.leaving_since_seconds is not None for each in self.workers)

    @property
    def prepares(self) -> bool:
        """Whether it builds the job or waits for its first weights, and nothing is known that keeps it from work."""
        prepare = all(each.able or each.state is MemberState.BUILDING for each in self.workers)
        hindered = self.leaves or self.stalled or self.hangs
        return self.complete and prepare and self.loaded_version is None and not hindered

    @property
    def receives_weights(self) -> bool:
        """Whether it has the newest weights or, since it had all of older ones, is being sent them."""
        return self.able and self.loaded_version is not None

    @property
    def speed(self) -> float:
        """Micro-batches per second of its slowest worker; 0 until all are measured."""
        return min(each.speed for each in self.workers)

    # ---- what it has done ----

    @property
    def keeps_stalling(self) -> bool:
        """Whether only work that it does counts as a sign that it goes on, since it was late too often."""
        return self.stalls >= MOST_STALLS

    def note_stall(self, stall_seconds: float, now: float) -> None:
        """Note that it took too long over a lease, which is at least `stall` long."""
        if not self.stalls or now - self.first_stall_seconds > FORGIVEN_AFTER_STALLS * stall_seconds:
            self.stalls, self.first_stall_seconds = 0, now
        self.stalled, self.stalls = True, self.stalls + 1

    def take_after(self, earlier: Row) -> None:
        """Have the stalls behind it that a row of the same process had."""
        self.stalls, self.first_stall_seconds = earlier.stalls, earlier.first_stall_seconds
        self.stalled = earlier.stalled and earlier.keeps_stalling

    def note_work(self) -> None:
        """Note that it has done a lease."""
        self.stalled = False
        for each in self.workers:
            each.failures = 0


def speeds(rows: Sequence[Row]) -> Mapping[int, float]:
    """Return each row's speed for planning, by session; unmeasured ones get the average of the others."""
    measured = {row.session: row.speed for row in rows}
    known = [speed for speed in measured.values() if speed]
    average = sum(known) / len(known) if known else 1.0
    return {session: speed or average for session, speed in measured.items()}
