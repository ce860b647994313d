"""Sets of chunks: they behave like sets, also after any ranges from a peer, and take no step for each chunk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protos.cluster_pb2 import Range
from services.protocol.bounds import MAX_CHUNKS, MAX_RUNS
from services.tensors.chunk_set import ChunkSet, to_ranges
from tests.support.chunk_sets import chunk_set
from tests.support.processor_time import limit_work

CHUNKS = 40
NUMBERS = st.integers(0, 50) | st.just((1 << 32) - 1)
INDICES = st.sets(st.integers(0, CHUNKS - 1))


def members(chunks: ChunkSet) -> set[int]:
    return {each for each in range(-2, CHUNKS + 2) if each in chunks}


@given(INDICES, INDICES)
def test_a_chunk_set_is_a_set(one: set[int], other: set[int]) -> None:
    first, second = chunk_set(one, CHUNKS), chunk_set(other, CHUNKS)
    assert members(first) == one and len(first) == len(one)
    assert members(first.complement()) == set(range(CHUNKS)) - one
    assert members(first.intersection(second)) == one & other
    first.update(second)
    assert members(first) == one | other and len(first) == len(one | other)
    first.remove(second)
    assert members(first) == one - other and len(first) == len(one - other)
    for each in other:
        second.discard(each)
        second.discard(each)
    assert not second and not members(second)
    first.clear()
    assert not first and not members(first)


@given(INDICES, st.integers(0, CHUNKS))
def test_the_last_absent_chunk_is_found(chunks: set[int], stop: int) -> None:
    absent = [each for each in range(stop) if each not in chunks]
    assert chunk_set(chunks, CHUNKS).find_last_absent(stop) == max(absent, default=-1)


@given(st.lists(st.builds(Range, first=NUMBERS, count=NUMBERS)))
def test_any_ranges_of_a_message_make_a_set(ranges: list[Range]) -> None:
    made = ChunkSet.from_ranges(ranges, CHUNKS)
    expected = {
        index for each in ranges for index in range(CHUNKS) if each.first <= index < each.first + each.count
    }
    assert members(made) == expected and len(made) == len(expected)
    assert [index for run in made.runs() for index in run] == sorted(expected)
    assert members(ChunkSet.from_ranges(to_ranges(made.runs()), CHUNKS)) == expected
    assert made.gaps() == made.complement().runs()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 7))
def test_runs_are_bounded_and_contain_the_set(period: int, length: int, start: int) -> None:
    chunks = 7 * MAX_RUNS + 5
    found = {each for each in range(start, chunks) if each % (period + length) < length}
    runs = chunk_set(found, chunks).runs()
    named = [index for run in runs for index in run]
    assert len(runs) <= MAX_RUNS and named == sorted(set(named)) and named[-1] < chunks
    assert found <= set(named)


def test_work_does_not_grow_with_the_chunks() -> None:
    half = chunk_set(range(0, MAX_CHUNKS, 2), MAX_CHUNKS)
    with limit_work(2):
        ranges = to_ranges(half.runs())
        made = ChunkSet.from_ranges(ranges, MAX_CHUNKS)
        made.remove(half)
        made.update(half.complement().intersection(half))
        assert made.find_last_absent(MAX_CHUNKS) >= 0 and half.complement().runs()
