"""The recovery figure: reading it from a job's log, and one death of each kind in a real cluster."""

from __future__ import annotations

import pytest

from benchmarks.figures import recovery
from benchmarks.harness.logged_cluster import Event, committed, steps_around
from benchmarks.harness.slowed_cluster import Begun, lease_seconds
from services.errors import Failed


def log(*seconds: float) -> list[Event]:
    """Return a log with steps committed at these moments, and other events between them."""
    steps = [Event(at, "step", f"Step: {number}, Loss: 1.0") for number, at in enumerate(seconds, 1)]
    return sorted(
        [*steps, Event(seconds[0] + 0.1, "member", "worker a is gone")], key=lambda each: each.seconds
    )


def test_the_committed_step_is_the_last_reported_one() -> None:
    assert committed([]) == 0
    assert committed(log(1.0, 2.0, 3.0)) == 3
    assert committed([*log(1.0, 2.0, 3.0), Event(4.0, "step", "Step: 1, Loss: 1.0")]) == 1, "it went back"


def test_steps_are_those_around_a_moment() -> None:
    events = log(1.0, 2.0, 4.0, 9.0, 12.0, 14.0)
    assert steps_around(events, 5.0, 2) == ([1.0, 2.0], 5.0, [3.0, 2.0])
    for too_early_or_late in (0.5, 1.5, 3.0, 10.0, 15.0):
        with pytest.raises(Failed, match="fewer than 2 steps"):
            steps_around(events, too_early_or_late, 2)


def test_the_last_micro_batch_is_counted_whole() -> None:
    assert lease_seconds([Begun(3, index, 10.0 + 0.5 * index) for index in range(4)]) == 2.0
    with pytest.raises(Failed, match="expected at least 2"):
        lease_seconds([Begun(3, 0, 10.0)])


def test_the_cost_excludes_the_detection() -> None:
    death = recovery.Death(
        detected_seconds=2.5,
        step_seconds=4.0,
        before_seconds=0.7,
        after_seconds=1.0,
        rejoin_steps=1,
        repeated=3,
    )
    assert death.cost == 1.5


@pytest.mark.slow
def test_one_death_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert recovery.run(kills=2, freezes=1, restarts=2), capsys.readouterr().out
