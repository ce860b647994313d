"""The rows of a job by their sessions, and the orders to them, which go to all workers of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from aggregator.core.events import Outbox, ToWorker
from aggregator.core.membership.members import Member
from aggregator.core.rows.forming import Seat, Seats
from aggregator.core.rows.row import WHOLE_MODEL, Row, RowLease
from protos import cluster_pb2 as pb
from services.pipeline.row_ids import make_row_id
from services.protocol.envelope import WorkerOrder
from services.protocol.versions import Version


class RowTable:
    """The rows of one job.

    Args:
        job: the job's id.
        epoch: the aggregator's epoch.
        workers: the connected workers, by session.
        drop_pieces: drops what has arrived of a lease's chunks.
        out: takes the orders.
        next_row: returns the number of a new row, from 1. The job may have run before in this epoch.

    Attributes:
        rows: the rows, by session.
    """

    def __init__(
        self,
        job: str,
        epoch: int,
        workers: Mapping[int, Member],
        drop_pieces: Callable[[int], None],
        out: Outbox,
        *,
        next_row: Callable[[], int],
    ) -> None:
        self.rows: dict[int, Row] = {}
        self._job = job
        self._epoch = epoch
        self._next_row = next_row
        self._workers = workers
        self._of_worker: dict[int, Row] = {}
        self._drop_pieces = drop_pieces
        self._out = out

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self.rows.values()))

    def add_worker(self, worker: Member) -> Row:
        """Add the row of a worker that has the whole model: it is complete, and messages don't name it."""
        return self._add(Row(0, (Seat(worker.session, WHOLE_MODEL),), [worker], complete=True))

    def form(self, seats: Seats) -> Row:
        """Add a row with a new id, which is given no leases before it is complete."""
        workers = [self._workers[seat.worker] for seat in seats]
        return self._add(Row(make_row_id(self._epoch, self._next_row()), seats, workers))

    def _add(self, row: Row) -> Row:
        self.rows[row.session] = row
        self._of_worker.update((seat.worker, row) for seat in row.seats)
        return row

    def remove(self, row: Row) -> None:
        """Remove a row whose leases are void for the core; its workers are told to stop working on them."""
        for lease in list(row.leases):
            self.void(row, lease)
        del self.rows[row.session]
        for seat in row.seats:
            del self._of_worker[seat.worker]

    def of_worker(self, session: int) -> Row | None:
        """Return the row of a worker; None if it is a spare."""
        return self._of_worker.get(session)

    # ---- orders ----

    def send(self, session: int, order: WorkerOrder) -> None:
        """Send an order to each worker of a row."""
        row = self.rows[session]
        if isinstance(order, pb.Lease):
            order.row = row.id
            self._grant(row, order)
        if isinstance(order, pb.Revoke):
            self._forget(row, order.lease)
        self._send_to_all(row, order)

    def _send_to_all(self, row: Row, order: WorkerOrder, but: int = 0) -> None:
        for seat in row.seats:
            if seat.worker in self._workers and seat.worker != but:
                self._out.put(ToWorker(seat.worker, order))

    def _grant(self, row: Row, lease: pb.Lease) -> None:
        """Remember a new lease, and forget those of earlier versions, which workers drop by themselves."""
        version = Version(lease.generation, lease.step)
        for earlier in [each for each, known in row.leases.items() if known.version < version]:
            self._forget(row, earlier)
        row.leases[lease.lease] = RowLease(version)

    def void(self, row: Row, lease: int, but: int = 0) -> None:
        """Make a lease void: no worker of the row works on it any longer. The one with the session `but` knows."""
        if self._forget(row, lease):
            self._send_to_all(row, pb.Revoke(job=self._job, lease=lease), but)

    def _forget(self, row: Row, lease: int) -> bool:
        self._drop_pieces(lease)
        return row.leases.pop(lease, None) is not None
