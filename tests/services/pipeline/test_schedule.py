"""Schedules run every pass once and in order, end in every arrangement of delays, and keep few activations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import Refused
from services.pipeline.schedule import LEAST_CREDITS, Pass, Schedule, check_micro_batches


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind, deep = draw(
        st.sampled_from([("gpipe", False), ("1f1b", False), ("1f1b", True), ("interleaved_1f1b", False)])
    )
    ranges = draw(st.integers(2, 4)) if kind == "interleaved_1f1b" else 1
    return Schedule(kind, draw(st.integers(1, 6)), draw(st.integers(1, 20)), ranges, deep)


@given(schedules())
def test_every_range_passes_every_micro_batch_once_and_in_index_order(schedule: Schedule) -> None:
    for stage in range(schedule.stages):
        done: dict[tuple[int, bool], list[int]] = {}
        for one in schedule.passes(stage):
            assert one.range_index % schedule.stages == stage
            done.setdefault((one.range_index, one.is_backward), []).append(one.micro_batch)
            if one.is_backward:
                assert one.micro_batch in done[one.range_index, False]
        assert len(done) == 2 * schedule.ranges_per_stage
        assert all(order == list(range(schedule.micro_batches)) for order in done.values())


@given(schedules())
def test_no_stage_keeps_more_activations_than_the_limit(schedule: Schedule) -> None:
    for stage in range(schedule.stages):
        peak = count_peak(schedule.passes(stage))
        assert peak <= schedule.in_flight_limit(stage)
        if schedule.micro_batches % schedule.stages == 0:
            assert peak == schedule.in_flight_limit(stage)


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
def test_limits_are_the_literatures_and_do_not_depend_on_the_number_of_micro_batches(stages: int) -> None:
    for m in (8 * stages, 1_000_000 * stages):
        for stage in range(stages):
            behind = stages - stage
            assert Schedule("gpipe", stages, m).in_flight_limit(stage) == m
            assert Schedule("1f1b", stages, m).in_flight_limit(stage) == behind
            deep = Schedule("1f1b", stages, m, hides_transfers=True)
            assert deep.in_flight_limit(stage) == 2 * behind - 1
            interleaved = Schedule("interleaved_1f1b", stages, m, 3)
            assert interleaved.in_flight_limit(stage) == 2 * (behind - 1) + 2 * stages + 1


def test_passes_of_millions_of_micro_batches_are_not_listed_beforehand() -> None:
    first = list(islice(Schedule("1f1b", 2, 10**12).passes(0), 5))
    assert [(one.is_backward, one.micro_batch) for one in first] == [
        (False, 0), (False, 1), (True, 0), (False, 2), (True, 1),
    ]  # fmt: skip


@given(schedules(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_least_credits_never_deadlock_whatever_the_delays(schedule: Schedule, random: Random) -> None:
    assert ends(schedule, LEAST_CREDITS, random)


@given(schedules())
def test_one_thread_can_run_all_stages(schedule: Schedule) -> None:
    merged = list(schedule.merged_passes())
    place = {one: index for index, one in enumerate(merged)}
    assert len(place) == len(merged) == 2 * schedule.ranges * schedule.micro_batches
    for one in merged:
        successor = schedule.successor(one)
        assert successor is None or (place[one] < place[successor] and schedule.is_fed(successor))
    for stage in range(schedule.stages):
        own = [one for one in merged if one.range_index % schedule.stages == stage]
        assert own == list(schedule.passes(stage))


def test_credits_shared_by_activations_and_gradients_would_deadlock_interleaving_over_two_stages() -> None:
    assert not ends(Schedule("interleaved_1f1b", 2, 4, 2), 1, Random(0), shared=True)
    assert ends(Schedule("interleaved_1f1b", 2, 4, 2), 2, Random(0), shared=True)


@pytest.mark.parametrize(("m", "stages", "advice"), [(6, 4, "write 4 or 8"), (3, 4, "write 4, or")])
def test_micro_batches_that_leave_gaps_are_refused(m: int, stages: int, advice: str) -> None:
    with pytest.raises(Refused, match=f"{m} micro-batches .* {stages} stages.*{advice}"):
        check_micro_batches("interleaved_1f1b", stages, m)
    check_micro_batches("1f1b", stages, m)
    check_micro_batches("interleaved_1f1b", stages, 2 * stages)


@pytest.mark.parametrize(
    ("kind", "stages", "m", "ranges"),
    [("gpipe", 2, 2, 2), ("1f1b", 2, 2, 2), ("interleaved_1f1b", 2, 2, 1), ("1f1b", 0, 1, 1), ("1f1b", 1, 0, 1)],
)  # fmt: skip
def test_impossible_numbers_are_an_error(kind: str, stages: int, m: int, ranges: int) -> None:
    with pytest.raises(ValueError, match="no schedule"):
        Schedule(kind, stages, m, ranges)


def count_peak(passes: Iterable[Pass]) -> int:
    kept = peak = 0
    for one in passes:
        kept += -1 if one.is_backward else 1
        peak = max(peak, kept)
    assert kept == 0
    return peak


def ends(schedule: Schedule, link_credits: int, random: Random, *, shared: bool = False) -> bool:
    """Run stages with blocking receives and sends, in random turns; return whether all of them end.

    A link holds `link_credits` messages, which are taken in order. Between two stages each direction of passes has a
    link of its own, unless they share it.
    """
    orders = [deque(schedule.passes(stage)) for stage in range(schedule.stages)]
    unsent: list[Pass | None] = [None] * schedule.stages
    links: dict[tuple[int, int, bool], deque[Pass]] = {}

    def link_to(one: Pass) -> deque[Pass]:
        source = (one.range_index + (1 if one.is_backward else -1)) % schedule.stages
        kind = False if shared else one.is_backward
        return links.setdefault((source, one.range_index % schedule.stages, kind), deque())

    def advance(stage: int) -> bool:
        message = unsent[stage]
        if message is not None:
            link = link_to(message)
            if len(link) >= link_credits:
                return False
            link.append(message)
            unsent[stage] = None
            return True
        if not orders[stage]:
            return False
        one = orders[stage][0]
        if schedule.is_fed(one):
            link = link_to(one)
            if not link or link[0] != one:
                assert shared or not link, "messages must be taken in the order in which they are sent"
                return False
            link.popleft()
        unsent[stage] = schedule.successor(orders[stage].popleft())
        return True

    stages = list(range(schedule.stages))
    while True:
        random.shuffle(stages)
        for stage in stages:
            # Some stages are slow: they run few passes before the others have their turn.
            progress = [advance(stage) for _ in range(random.choice((1, 3, 30)))]
            if any(progress):
                break
        else:
            return not any(orders) and not any(unsent)
