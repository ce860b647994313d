"""Orders for a row go to each of its workers, and what is void for the core is void for them."""

from __future__ import annotations

from itertools import count

from aggregator.core.events import Effect, Outbox, ToWorker
from aggregator.core.membership.members import Member
from aggregator.core.rows.forming import Seat
from aggregator.core.rows.row import Row
from aggregator.core.rows.row_table import RowTable
from protos import cluster_pb2 as pb
from services.pipeline.row_ids import describe_row, row_number
from services.pipeline.split import StageRun

EPOCH = 3


class Table:
    """A table with two workers in row 1 of epoch 3, and what it has ordered."""

    def __init__(self) -> None:
        self.out: Outbox = Outbox()
        self.dropped: list[int] = []
        self.workers = {session: Member(session, f"w{session}", f"i{session}", 0.0) for session in (1, 2, 3)}
        self.table = RowTable(
            "a", EPOCH, self.workers, self.dropped.append, self.out, next_row=count(1).__next__
        )
        self.row = self.add(1, 2)

    def add(self, *workers: int) -> Row:
        seats = tuple(Seat(worker, StageRun(stage, 1)) for stage, worker in enumerate(workers))
        return self.table.form(seats)

    def lease(self, lease: int, generation: int = 1, step: int = 0) -> list[Effect]:
        order = pb.Lease(job="a", lease=lease, generation=generation, step=step)
        self.table.send(self.row.session, order)
        return self.out.take()


def test_a_lease_goes_to_each_worker_and_names_the_row() -> None:
    table = Table()
    wanted = pb.Lease(job="a", lease=20, generation=1, row=table.row.id)
    assert table.lease(20) == [ToWorker(1, wanted), ToWorker(2, wanted)]
    assert list(table.row.leases) == [20]


def test_a_worker_with_the_whole_model_is_a_row_that_leases_do_not_name() -> None:
    table = Table()
    row = table.table.add_worker(table.workers[3])
    assert row.complete and table.table.of_worker(3) is row and row.title == "worker w3"
    table.table.send(3, pb.Lease(job="a", lease=20, generation=1))
    assert table.out.take() == [ToWorker(3, pb.Lease(job="a", lease=20, generation=1))]


def test_a_revoked_lease_is_void_with_its_pieces() -> None:
    table = Table()
    table.lease(20)
    table.dropped.clear()
    table.table.send(table.row.session, pb.Revoke(job="a", lease=20))
    assert [effect.session for effect in table.out.take() if isinstance(effect, ToWorker)] == [1, 2]
    assert table.row.leases == {} and table.dropped == [20]
    table.table.void(table.row, 20)
    assert table.out.take() == [], "workers know"
    table.lease(21)
    table.table.void(table.row, 21, but=1)
    assert table.out.take() == [ToWorker(2, pb.Revoke(job="a", lease=21))]


def test_leases_of_earlier_versions_are_forgotten_with_the_next_ones() -> None:
    table = Table()
    table.lease(20, 1, 4)
    table.lease(21, 1, 4)
    assert set(table.row.leases) == {20, 21}
    table.lease(22, 2, 1)
    assert set(table.row.leases) == {22} and table.dropped == [20, 21]


def test_a_row_that_ends_revokes_what_it_has_of_the_workers_that_are_left() -> None:
    table = Table()
    table.lease(20)
    del table.workers[1]
    table.table.remove(table.row)
    assert table.out.take() == [ToWorker(2, pb.Revoke(job="a", lease=20))]
    assert table.table.of_worker(2) is None and not list(table.table) and not table.table.rows
    again = table.add(2, 3)
    assert table.table.of_worker(2) is again and table.table.rows == {2: again}


def test_rows_count_from_1_and_no_later_aggregator_has_their_ids() -> None:
    table = Table()
    rows = [table.row, table.add(3)]
    table.table.remove(rows[0])
    rows.append(table.add(1, 2))
    assert [row_number(each.id) for each in rows] == [1, 2, 3], "whatever leases were granted between them"
    later = RowTable(
        "a", EPOCH + 1, table.workers, table.dropped.append, table.out, next_row=count(1).__next__
    )
    first = later.form((Seat(1, StageRun(0, 1)),))
    assert row_number(first.id) == 1 and first.id not in {each.id for each in rows}
    assert describe_row(first.id) == f"row 1 of epoch {EPOCH + 1}"
