"""A row can do what all of its workers can, and is as fast as the slowest of them."""

from __future__ import annotations

from aggregator.core.leasing.planning import plan
from aggregator.core.membership.members import Member
from aggregator.core.rows.forming import Seat
from aggregator.core.rows.row import Row, speeds
from services.pipeline.split import StageRun
from services.protocol.versions import Version
from services.tensors.reduction_tree import Node


def row_of(*workers: Member) -> Row:
    seats = tuple(Seat(each.session, StageRun(stage, 1)) for stage, each in enumerate(workers))
    return Row(1, seats, workers, complete=True)


def member(session: int, speed: float = 0.0) -> Member:
    return Member(session, f"worker-{session}", f"incarnation-{session}", 0.0, speed=speed)


def row(session: int, speed: float = 0.0) -> Row:
    return row_of(member(session, speed))


def test_a_row_is_able_once_its_workers_are_and_they_have_all_stages() -> None:
    workers = [member(1), member(2)]
    row = row_of(*workers)
    for each in workers:
        row.refresh()
        assert not row.able
        each.ready = each.has_data_stream = True
    row.refresh()
    assert row.able
    row.complete = False
    row.refresh()
    assert not row.able


def test_a_row_has_the_earliest_version_of_its_workers() -> None:
    workers = [member(1), member(2)]
    row = row_of(*workers)
    workers[0].loaded_version = Version(1, 5)
    row.refresh()
    assert row.loaded_version is None
    workers[1].loaded_version = Version(1, 4)
    row.refresh()
    assert row.loaded_version == Version(1, 4)


def test_a_row_not_measured_yet_counts_as_average() -> None:
    assert speeds([row(1, 2.0), row(2, 4.0), row(3)]) == {1: 2.0, 2: 4.0, 3: 3.0}
    assert speeds([row(1), row(2)]) == {1: 1.0, 2: 1.0}
    assert row_of(member(1, 2.0), member(2, 1.0)).speed == 1.0
    assert row_of(member(1, 2.0), member(2)).speed == 0.0, "it may be slower than the other"


def test_a_row_once_measured_slow_is_given_work_again() -> None:
    fast, slow = row(1, 10.0), row(2, 1.0)
    for _ in range(100):
        owners = set(plan([Node(0, 2)], speeds([fast, slow])).values())
        if slow.session in owners:
            return
        slow.workers[0].record_idle_step()
    raise AssertionError("never leased anything again")
