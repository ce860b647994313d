"""The rows of a job, as its leases see them: one `Member` each, whose orders go to all workers of the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.core.events import Outbox, ToWorker
from aggregator.core.membership.members import Member
from aggregator.core.rows.forming import Seat, Seats
from protos import cluster_pb2 as pb
from services.pipeline.row_ids import make_row_id
from services.printable import printable
from services.protocol.envelope import WorkerOrder
from services.protocol.versions import Version

NAMES_CHARACTERS = 200
"""Longest list of a row's workers."""


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


@dataclass
class Row:
    """Workers that together have all stages, unless the row lacks some.

    Attributes:
        row: its id, which no later row of the job has.
        seats: its workers and their stages.
        member: the row as a holder of leases.
        leases: the leases that its workers may still work on, by id.
        introduced: whether its workers have been told of each other.
        lagging: its workers that do not have the newest weights, while others of it do.
        lagging_since_seconds: since when it is these.
    """

    row: int
    seats: Seats
    member: Member
    leases: dict[int, RowLease] = field(default_factory=dict)
    introduced: bool = False
    lagging: Sequence[Seat] = ()
    lagging_since_seconds: float = 0.0


class RowTable:
    """The rows of one job; none in a job without a pipeline.

    Args:
        job: the job's id.
        epoch: the aggregator's epoch.
        workers: the connected workers, by session.
        drop_pieces: drops what has arrived of a lease's chunks.
        out: takes the orders.

    Attributes:
        rows: the rows by session, which is a negative number: minus the row's id.
        members: the same rows, as holders of leases.
    """

    def __init__(
        self,
        job: str,
        epoch: int,
        workers: Mapping[int, Member],
        drop_pieces: Callable[[int], None],
        out: Outbox,
    ) -> None:
        self.rows: dict[int, Row] = {}
        self.members: dict[int, Member] = {}
        self._job = job
        self._epoch = epoch
        self._formed = 0
        self._workers = workers
        self._of_worker: dict[int, Row] = {}
        self._drop_pieces = drop_pieces
        self._out = out

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self.rows.values()))

    def add(self, seats: Seats, now: float) -> Row:
        """Add a row with a new id, which is given no leases before its member is ready."""
        self._formed += 1
        row_id = make_row_id(self._epoch, self._formed)
        names = tuple(self._workers[seat.worker].name for seat in seats)
        name = printable(", ".join(names), NAMES_CHARACTERS)
        member = Member(-row_id, name, "", now, has_data_stream=True, row=names)
        row = Row(row_id, seats, member)
        self.rows[member.session], self.members[member.session] = row, member
        self._of_worker.update((seat.worker, row) for seat in seats)
        return row

    def remove(self, row: Row) -> None:
        """Remove a row whose leases are void for the core; its workers are told to stop working on them."""
        for lease in list(row.leases):
            self.void(row, lease)
        del self.rows[row.member.session], self.members[row.member.session]
        for seat in row.seats:
            del self._of_worker[seat.worker]

    def of_worker(self, session: int) -> Row | None:
        """Return the row of a worker; None if it is a spare."""
        return self._of_worker.get(session)

    # ---- orders ----

    def send(self, session: int, order: WorkerOrder) -> None:
        """Send an order to a worker, or to each worker of a row."""
        row = self.rows.get(session)
        if row is None:
            self._out.put(ToWorker(session, order))
            return
        if isinstance(order, pb.Lease):
            order.row = row.row
            self._grant(row, order)
        if isinstance(order, pb.Revoke):
            self._forget(row, order.lease)
        self._send_to_all(row, order)

    def _send_to_all(self, row: Row, order: WorkerOrder) -> None:
        for seat in row.seats:
            if seat.worker in self._workers:
                self._out.put(ToWorker(seat.worker, order))

    def _grant(self, row: Row, lease: pb.Lease) -> None:
        """Remember a new lease, and forget those of earlier versions, which workers drop by themselves."""
        version = Version(lease.generation, lease.step)
        for earlier in [each for each, known in row.leases.items() if known.version < version]:
            self._forget(row, earlier)
        row.leases[lease.lease] = RowLease(version)

    def void(self, row: Row, lease: int) -> None:
        """Make a lease void: no worker of the row works on it any longer."""
        if self._forget(row, lease):
            self._send_to_all(row, pb.Revoke(job=self._job, lease=lease))

    def _forget(self, row: Row, lease: int) -> bool:
        self._drop_pieces(lease)
        return row.leases.pop(lease, None) is not None
