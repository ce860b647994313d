"""Tests of chunk ranges. Ranges from a peer never cost more than the layout has chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protos.cluster_pb2 import Range
from services.tensors.chunk_ranges import from_ranges

NUMBERS = st.integers(0, 12) | st.just((1 << 32) - 1)


@given(st.lists(st.builds(Range, first=NUMBERS, count=NUMBERS)), st.integers(0, 10))
def test_any_ranges_give_each_chunk_once_in_ascending_order(ranges: list[Range], chunks: int) -> None:
    expected = {
        index for run in ranges for index in range(chunks) if run.first <= index < run.first + run.count
    }
    assert list(from_ranges(ranges, chunks)) == sorted(expected)
