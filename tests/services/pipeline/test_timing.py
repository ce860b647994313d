"""Times follow the literature's formulas where stages are even, and simulations where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.pipeline import timing
from services.pipeline.schedule import Schedule
from services.pipeline.timing import PassSeconds, time_schedule
from tests.support.timed_passes import simulate_passes


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("multiple", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("kind", "ranges", "hides"),
    [
        ("gpipe", 1, False),
        ("1f1b", 1, False),
        ("1f1b", 1, True),
        ("interleaved_1f1b", 2, False),
        ("interleaved_1f1b", 3, False),
    ],
)
def test_bubbles_of_even_stages_are_those_of_the_literature(
    kind: str, ranges: int, hides: bool, stages: int, multiple: int
) -> None:
    m = stages * multiple
    times = time_schedule(
        Schedule(kind, stages, m, ranges, hides), PassSeconds.even(stages * ranges, 1.0, 2.0)
    )
    assert times.bubble == pytest.approx((stages - 1) / (ranges * m + stages - 1))
    assert times.idle_shares == pytest.approx([times.bubble] * stages)
    assert times.hidden_share == 1


def test_a_slow_stage_sets_the_pace() -> None:
    times = time_schedule(Schedule("1f1b", 3, 50), PassSeconds((1, 3, 1), (2, 6, 2)))
    assert times.makespan_seconds == pytest.approx(1 + 50 * 9 + 2)
    assert times.idle_shares[1] < 0.02 < 0.6 < times.idle_shares[0] == times.idle_shares[2]


@pytest.mark.parametrize("stages", [2, 4])
def test_more_micro_batches_in_flight_hide_transfers_of_half_the_compute_time(stages: int) -> None:
    # A stage computes for 3 s per micro-batch, and its activation is 1.5 s under way, as is the gradient.
    seconds = PassSeconds((1.0,) * stages, (2.0,) * stages, transfer=1.5)
    few = time_schedule(Schedule("1f1b", stages, 64), seconds)
    many = time_schedule(Schedule("1f1b", stages, 64, hides_transfers=True), seconds)
    assert many.hidden_share > 0.9 > 0.55 > few.hidden_share
    # Only the transfers of the first and the last micro-batch show.
    assert many.exposed_seconds == pytest.approx(2 * (stages - 1) * 1.5)


def test_a_link_carries_one_message_after_the_other() -> None:
    seconds = PassSeconds((1.0, 1.0), (1.0, 1.0), transfer=10.0)
    times = time_schedule(Schedule("gpipe", 2, 8), seconds)
    assert times.makespan_seconds == pytest.approx(1 + 8 * 10 + 2 + 8 * 10 + 1)


def test_ranges_of_one_stage_send_nothing() -> None:
    schedule = Schedule("interleaved_1f1b", 1, 4, 2)
    assert time_schedule(schedule, PassSeconds.even(2, 1.0, 2.0, 5.0)).makespan_seconds == 12


@st.composite
def timed_schedules(draw: st.DrawFn, fewest: int, most: int) -> tuple[Schedule, PassSeconds]:
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"]))
    ranges = draw(st.integers(2, 3)) if kind == "interleaved_1f1b" else 1
    stages, m = draw(st.integers(1, 4)), draw(st.integers(fewest, most))
    schedule = Schedule(kind, stages, m, ranges, kind == "1f1b" and draw(st.booleans()))
    each = st.lists(st.integers(1, 9), min_size=stages * ranges, max_size=stages * ranges)
    return schedule, PassSeconds(tuple(draw(each)), tuple(draw(each)), draw(st.integers(0, 9)))


@given(timed_schedules(1, 20))
@settings(max_examples=150)
def test_all_stages_at_once_take_what_their_passes_take_one_by_one(
    timed: tuple[Schedule, PassSeconds],
) -> None:
    schedule, seconds = timed
    assert timing._simulate(schedule, seconds) == max(
        each.stop for each in simulate_passes(schedule, seconds)
    )


@given(timed_schedules(100, 250))
@settings(max_examples=40)
def test_many_micro_batches_take_what_a_simulation_of_all_takes(
    timed: tuple[Schedule, PassSeconds],
) -> None:
    schedule, seconds = timed
    assert time_schedule(schedule, seconds).makespan_seconds == pytest.approx(
        timing._simulate(schedule, seconds), rel=0.01
    )


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved_1f1b"])
def test_the_work_does_not_grow_with_the_number_of_micro_batches(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[int] = []
    simulate = timing._simulate

    def note(schedule: Schedule, seconds: PassSeconds) -> float:
        simulated.append(schedule.micro_batches)
        return simulate(schedule, seconds)

    monkeypatch.setattr(timing, "_simulate", note)
    ranges = 2 if kind == "interleaved_1f1b" else 1
    times = time_schedule(Schedule(kind, 4, 10**9, ranges), PassSeconds.even(4 * ranges, 1, 2, 0.01))
    assert max(simulated) <= 200 and len(simulated) <= 4
    assert times.makespan_seconds == pytest.approx(0.75e9, rel=0.1)


def test_times_of_other_ranges_are_an_error() -> None:
    with pytest.raises(ValueError, match="times of 3 ranges"):
        time_schedule(Schedule("1f1b", 2, 4), PassSeconds.even(3, 1, 2))
