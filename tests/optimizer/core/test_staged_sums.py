"""Reports on staged sums count only for the newest order, in whatever order a step starts over."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.open_job import StagedSums

CHUNKS = 2


def test_a_report_on_a_discarded_sum_does_not_count_for_the_next_one() -> None:
    sums = StagedSums()
    sums.note_order(0)
    sums.clear()  # the step starts over
    sums.note_report(0, [1.0])
    sums.note_order(0)
    assert sums.take(1) is None
    sums.note_report(0, [2.0, 3.0])
    assert sums.take(1) == [2.0, 3.0]
    assert sums.take(1) is None, "they were taken"


def test_a_report_that_nothing_asked_for_changes_nothing() -> None:
    sums = StagedSums()
    sums.note_report(0, [1.0])
    assert sums.take(1) is None
    sums.note_order(0)
    assert sums.awaits([0]) and not sums.awaits([1])
    sums.note_report(0, [2.0])
    assert sums.take(1) == [2.0]


@given(st.lists(st.tuples(st.sampled_from(["order", "report", "clear"]), st.integers(0, CHUNKS - 1))))
def test_what_is_taken_is_what_was_ordered_last(actions: list[tuple[str, int]]) -> None:
    """A shard reports on its orders in their sequence, at any time later."""
    sums = StagedSums()
    on_their_way: list[deque[int]] = [deque() for _ in range(CHUNKS)]
    newest: dict[int, int] = {}
    for number, (action, chunk) in enumerate(actions):
        if action == "order":
            sums.note_order(chunk)
            on_their_way[chunk].append(number)
            newest[chunk] = number
        elif action == "clear":
            sums.clear()
        elif on_their_way[chunk]:
            sums.note_report(chunk, [on_their_way[chunk].popleft()])
        assert sums.awaits([chunk]) == bool(on_their_way[chunk])
        taken = sums.take(CHUNKS)
        assert taken is None or sorted(taken) == sorted(newest[each] for each in range(CHUNKS))
