"""Sums of gradients that come range by range have the bits of sums of whole gradients, and become ready in order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.pipeline.schedule import Pass, Schedule
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from training.range_step import FinishedPass
from worker.gradient_checksum import GradientChecksum
from worker.node_sum import NodeSum
from worker.pass_checksums import PassChecksums
from worker.range_sums import RangeSums

FINISHED = FinishedPass(None, None, None, "")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, Layout, list[slice]]:
    stages, leaves = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"]))
    schedule = Schedule(kind, stages, leaves, 2 if kind == "interleaved_1f1b" else 1)
    sizes = [draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)) for _ in range(schedule.ranges)]
    flat = [size for of_range in sizes for size in of_range]
    layout = Layout.build((f"t{at}", (size,), False, f"t{at}", False) for at, size in enumerate(flat))
    stops = np.cumsum([sum(of_range) for of_range in sizes])
    return schedule, layout, [slice(stop - sum(own), stop) for stop, own in zip(stops, sizes, strict=True)]


@given(cases(), st.integers(0, 5))
def test_any_schedule_gives_the_sum_of_whole_gradients_and_the_checksum_of_each_range(
    case: tuple[Schedule, Layout, list[slice]], first: int
) -> None:
    schedule, layout, ranges = case
    gradients = (
        np.random.default_rng(1).standard_normal((schedule.micro_batches, layout.elements)).astype("f4")
    )
    checksums = PassChecksums(schedule.ranges, {first, first + 2})
    expected_checksums = PassChecksums(schedule.ranges, {first, first + 2})
    expected = np.empty(layout.elements, np.float32)
    node_sum = NodeSum(expected, schedule.micro_batches, lambda offset: None)
    for at, gradient in enumerate(gradients):
        for index, own in enumerate(ranges):
            entries = [each for each in layout.entries if own.start <= each.offset < own.stop]
            checksum = GradientChecksum(entries, gradient[own])
            checksum.advance_to(0)
            expected_checksums.note(Pass(True, index, first + at), checksum.crc32c)
        node_sum.add_leaf(lambda out, done, gradient=gradient: (out.__setitem__(..., gradient), done(0)))

    out = np.full(layout.elements, np.nan, np.float32)
    ready: list[int] = []

    def report(offset: int) -> None:
        assert out[offset:].tobytes() == expected[offset:].tobytes()
        ready.append(offset)

    step: Any = SimpleNamespace(layout=layout, ranges=dict(enumerate(ranges)))
    sums = RangeSums(step, out, schedule.micro_batches, report, checksums)
    for one in schedule.merged_passes():
        if not one.is_backward:
            continue
        own = ranges[one.range_index]
        starts = [each.offset - own.start for each in layout.entries if own.start <= each.offset < own.stop]

        def compute(
            place: Float32Array,
            done: Callable[[int], None],
            part: Float32Array = gradients[one.micro_batch, own],
            starts: list[int] = starts,
        ) -> FinishedPass:
            stop = place.size
            for start in reversed(starts):
                place[start:stop] = part[start:stop]
                done(start)
                stop = start
            return FINISHED

        assert sums.add_leaf(one.range_index, first + one.micro_batch, compute) is FINISHED
    assert ready == sorted(ready, reverse=True) and ready[-1] == 0
    assert checksums.to_messages() == expected_checksums.to_messages()
    assert {each.micro_batch for each in checksums.to_messages()} <= {first, first + 2}
