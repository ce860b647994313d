"""Tests of measured speeds, and that one bad measurement does not exclude a worker for good."""

from __future__ import annotations

from aggregator.core.leasing.planning import plan
from aggregator.core.membership.members import Member, speeds
from services.tensors.reduction_tree import Node


def member(session: int, speed: float = 0.0) -> Member:
    return Member(session, f"worker-{session}", f"incarnation-{session}", 0.0, speed=speed)


def test_speed_follows_the_measurements() -> None:
    worker = member(1)
    worker.record_lease(4, 2.0)
    assert worker.speed == 2.0
    worker.record_lease(4, 1.0)
    assert 2.0 < worker.speed < 4.0


def test_a_worker_not_measured_yet_counts_as_average() -> None:
    assert speeds([member(1, 2.0), member(2, 4.0), member(3)]) == {1: 2.0, 2: 4.0, 3: 3.0}
    assert speeds([member(1), member(2)]) == {1: 1.0, 2: 1.0}


def test_a_worker_once_measured_slow_is_given_work_again() -> None:
    fast, slow = member(1, 10.0), member(2, 1.0)
    for _ in range(100):
        owners = set(plan([Node(0, 2)], speeds([fast, slow])).values())
        if slow.session in owners:
            return
        slow.record_idle_step()
    raise AssertionError("never leased anything again")
