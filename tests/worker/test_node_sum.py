"""Sums of gradients that come range by range have the bits of sums of whole gradients, and become ready in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.pipeline.schedule import Schedule
from services.tensors.kernels.arithmetic import Float32Array
from worker.node_sum import NodeSum


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, list[list[int]]]:
    """Return a schedule, and the sizes of each range's parameters."""
    stages, leaves = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"]))
    schedule = Schedule(kind, stages, leaves, 2 if kind == "interleaved_1f1b" else 1)
    return schedule, [
        draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)) for _ in range(schedule.ranges)
    ]


@given(cases())
def test_any_schedule_gives_the_sum_of_whole_gradients(case: tuple[Schedule, list[list[int]]]) -> None:
    schedule, sizes = case
    stops = np.cumsum([sum(own) for own in sizes])
    ranges = [slice(stop - sum(own), stop) for stop, own in zip(stops, sizes, strict=True)]
    elements, leaves = int(stops[-1]), schedule.micro_batches
    gradients = np.random.default_rng(1).standard_normal((leaves, elements)).astype("f4")

    def write(own: slice, leaf: int, sizes: list[int], out: Float32Array, done: Callable[[int], None]) -> int:
        """Write a range's part of a gradient, one parameter after another from the last one on."""
        start = out.size
        for size in reversed(sizes):
            stop, start = start, start - size
            out[start:stop] = gradients[leaf, own][start:stop]
            done(start)
        return leaf

    expected = np.empty(elements, np.float32)
    whole = NodeSum({0: slice(0, elements)}, expected, leaves, lambda offset: None)
    for leaf in range(leaves):
        whole.add_leaf(0, partial(write, slice(0, elements), leaf, [elements]))

    out = np.full(elements, np.nan, np.float32)
    ready: list[int] = []

    def report(offset: int) -> None:
        assert out[offset:].tobytes() == expected[offset:].tobytes()
        ready.append(offset)

    node_sum = NodeSum(dict(enumerate(ranges)), out, leaves, report)
    for one in schedule.merged_passes():
        if one.is_backward:
            index, leaf = one.range_index, one.micro_batch
            assert node_sum.add_leaf(index, partial(write, ranges[index], leaf, sizes[index])) == leaf
    assert ready == sorted(ready, reverse=True) and ready[-1] == 0
