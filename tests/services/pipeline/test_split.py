"""A split covers a model's blocks once, in order, with each stage's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.pipeline.split import BlockRange, Split, StageRun


@st.composite
def splits(draw: st.DrawFn) -> Split:
    ranges = draw(st.integers(1, 4))
    return Split(tuple(draw(st.lists(st.integers(ranges, 20), min_size=1, max_size=6))), ranges)


@given(splits())
def test_ranges_cover_all_blocks_in_order_and_each_stage_has_its_blocks(split: Split) -> None:
    assert [b for r in split.ranges for b in range(r.first, r.stop)] == list(range(split.blocks))
    for stage, blocks in enumerate(split.blocks_per_stage):
        own = split.ranges_of(stage)
        assert len(own) == split.ranges_per_stage
        assert sum(map(len, own)) == blocks
        assert max(map(len, own)) - min(map(len, own)) <= 1
        assert all(split.stage_of(split.ranges.index(r)) == stage for r in own)


@given(splits())
def test_first_and_last_range_know_it(split: Split) -> None:
    assert [r.is_first for r in split.ranges] == [r is split.ranges[0] for r in split.ranges]
    assert [r.is_last for r in split.ranges] == [r is split.ranges[-1] for r in split.ranges]


def test_a_whole_model_is_one_range() -> None:
    whole = BlockRange.whole(7)
    assert whole.is_whole and len(whole) == 7
    assert Split((7,)).ranges == (whole,)
    assert not any(r.is_whole for r in Split((3, 4)).ranges)


@pytest.mark.parametrize(("first", "stop", "blocks"), [(0, 0, 4), (3, 2, 4), (-1, 2, 4), (2, 5, 4)])
def test_an_empty_or_outer_range_is_an_error(first: int, stop: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        BlockRange(first, stop, blocks)


@pytest.mark.parametrize(("blocks", "ranges"), [((), 1), ((3, 0), 1), ((4, 1), 2), ((4, 4), 0)])
def test_a_split_with_an_empty_range_is_an_error(blocks: tuple[int, ...], ranges: int) -> None:
    with pytest.raises(ValueError, match="no split"):
        Split(blocks, ranges)


def test_a_run_of_stages() -> None:
    assert StageRun(1, 2).stop == 3
    assert StageRun(1, 2).is_in(StageRun(0, 3)) and not StageRun(1, 3).is_in(StageRun(0, 3))
    assert [str(StageRun(2, count)) for count in (1, 3)] == ["stage 2", "stages 2-4"]
