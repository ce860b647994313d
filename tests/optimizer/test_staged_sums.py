"""Reports on staged sums count only for the newest order, in whatever order a step starts over."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from optimizer.staged_sums import StagedSums

CHUNKS = 2


def test_a_report_on_a_discarded_sum_does_not_count_for_the_next_one() -> None:
    sums: StagedSums[str] = StagedSums()
    sums.note_order(0)
    sums.clear()  # the step starts over
    sums.note_report(0, "discarded")
    sums.note_order(0)
    assert sums.take(1) is None
    sums.note_report(0, "new")
    assert sums.take(1) == ["new"]
    assert sums.take(1) is None, "they were taken"


@given(st.lists(st.tuples(st.sampled_from(["order", "report", "clear"]), st.integers(0, CHUNKS - 1))))
def test_what_is_taken_is_what_was_ordered_last(actions: list[tuple[str, int]]) -> None:
    """A shard reports on its orders in their sequence, at any time later."""
    sums: StagedSums[int] = StagedSums()
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
            sums.note_report(chunk, on_their_way[chunk].popleft())
        assert sums.has(chunk) <= (not on_their_way[chunk])
        taken = sums.take(CHUNKS)
        assert taken is None or taken == [newest[each] for each in range(CHUNKS)]
