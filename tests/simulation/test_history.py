"""The checker of histories refuses each kind of wrong history."""

from __future__ import annotations

import pytest

from tests.simulation.history import (
    Committed,
    Covered,
    Event,
    FaultsEnded,
    InvalidHistory,
    Planned,
    Reported,
    Ticked,
    check,
)

PLANNED = Planned("job", micro_batches=3, chunks=2)


def step(generation: int, number: int) -> list[Event]:
    """Return the events of a correct step."""
    covered = [Covered("job", generation, number, chunk, (0, 1, 2)) for chunk in (1, 0)]
    return [*covered, Committed("job", generation, number), Reported("job", generation, number + 1)]


def test_a_history_with_one_rollback_is_accepted() -> None:
    events = [PLANNED, *step(1, 0), *step(1, 1), *step(2, 1), FaultsEnded(5, 10), *step(2, 2), Ticked(15)]
    assert check(events) == 4


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (step(1, 0) + step(1, 0)[:3], "it was committed before"),
        (step(2, 0) + step(1, 1), r"it comes after \(2, 0\)"),
        (step(1, 0) + step(1, 2), r"it comes right after \(1, 0\)"),
        (step(1, 0)[1:], r"its sum lacks chunks \[1\]"),
        (step(1, 0) + step(1, 1)[2:], r"its sum lacks chunks \[0, 1\]"),
        ([Covered("job", 1, 0, 0, (0, 2))], r"micro-batches \[1\] were lost"),
        ([Covered("job", 1, 0, 0, (0, 1, 1, 2))], r"\[1\] counted more than once"),
        ([Covered("job", 1, 0, 0, (0, 1, 2, 3))], r"micro-batches \[3\] are none of this step"),
        ([Covered("job", 1, 0, 2, (0, 1, 2))], "the layout has 2 chunks"),
        ([Reported("job", 1, 1), Reported("job", 1, 1)], "it was reported before"),
        ([Planned("job", 4, 2)], "the job was planned as"),
        ([FaultsEnded(5, 10), Ticked(15.5)], "after FaultsEnded"),
    ],
)
def test_a_wrong_history_is_refused(events: list[Event], problem: str) -> None:
    with pytest.raises(InvalidHistory, match=problem):
        check([PLANNED, *events])
