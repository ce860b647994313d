"""A worker's speed follows what it was measured last, and remembers what came before."""

from __future__ import annotations

from aggregator.core.membership.members import Member


def test_speed_follows_the_measurements() -> None:
    worker = Member(1, "worker-1", "incarnation-1", 0.0)
    worker.record_lease(4, 2.0)
    assert worker.speed == 2.0
    worker.record_lease(4, 1.0)
    assert 2.0 < worker.speed < 4.0
