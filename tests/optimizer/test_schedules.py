"""Learning rate schedules match tt-train and nanoGPT, including the first and last steps."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.schedules import first_moment_decay, learning_rate
from services.protocol.plan import Schedule

schedules = st.builds(
    lambda total, warmup, kind: Schedule(
        type=kind, total_steps=total, warmup_steps=min(warmup, total - 1), min_lr=1e-4
    ),
    st.integers(1, 500),
    st.integers(0, 500),
    st.sampled_from(["warmup_linear", "warmup_cosine"]),
)


def rates(schedule: Schedule, base: float = 1e-3) -> list[float]:
    return [learning_rate(schedule, base, step) for step in range(schedule.total_steps + 5)]


def test_identity_schedule_is_constant() -> None:
    assert set(rates(Schedule(total_steps=20))) == {1e-3}


def test_warmup_linear_matches_tt_train() -> None:
    schedule = Schedule(type="warmup_linear", total_steps=100, warmup_steps=10)
    factors = rates(schedule, base=1.0)
    assert factors[:10] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert factors[10] == pytest.approx(1 - 0.99 / 90)
    assert factors[54] == pytest.approx(1 - 0.99 * 45 / 90)
    assert factors[99:] == pytest.approx([0.01] * 6)


def test_warmup_cosine_matches_nanogpt() -> None:
    schedule = Schedule(type="warmup_cosine", total_steps=2000, warmup_steps=100, min_lr=1e-4)
    values = rates(schedule)
    assert values[0] == pytest.approx(1e-3 / 101)
    assert values[99] == pytest.approx(1e-3 * 100 / 101)
    assert values[100] == pytest.approx(1e-3)
    assert values[1050] == pytest.approx((1e-3 + 1e-4) / 2)
    assert values[575] == pytest.approx(1e-4 + 0.5 * (1 + math.cos(math.pi / 4)) * 9e-4)
    assert values[2000:] == [1e-4] * 5


def test_speedrun_matches_tt_train() -> None:
    schedule = Schedule(type="speedrun", total_steps=50, warmup_steps=20, hold_steps=10, min_lr=2e-4)
    values = rates(schedule)
    assert values[0] == 0
    assert values[5] == pytest.approx(0.25e-3)
    assert values[20:31] == [1e-3] * 11
    assert values[40] == pytest.approx(6e-4)
    assert values[50:] == pytest.approx([2e-4] * 5)


@pytest.mark.parametrize(("warmup", "hold"), [(20, 1000), (40, 10), (50, 0)])
def test_speedrun_keeps_its_peak_if_warm_up_and_hold_fill_the_schedule(warmup: int, hold: int) -> None:
    schedule = Schedule(type="speedrun", total_steps=50, warmup_steps=warmup, hold_steps=hold)
    assert {learning_rate(schedule, 1e-3, step) for step in range(warmup, 2000)} == {1e-3}


def test_speedrun_moves_beta1_in_equal_steps_and_other_schedules_leave_it() -> None:
    schedule = Schedule(
        type="speedrun", total_steps=50, beta1_start=0.85, beta1_end=0.95, beta1_warmup_steps=10
    )
    found = [first_moment_decay(schedule, step) for step in range(12)]
    assert found == pytest.approx([0.85 + 0.01 * step for step in range(11)] + [0.95])
    assert first_moment_decay(Schedule(type="speedrun"), 3) is None


def test_step_multiplies_the_rate_every_few_steps() -> None:
    schedule = Schedule(type="step", total_steps=9, step_size=3, gamma=0.5)
    assert rates(schedule)[:9] == [1e-3] * 3 + [5e-4] * 3 + [2.5e-4] * 3


@pytest.mark.parametrize("kind", ["warmup_linear", "warmup_cosine"])
def test_without_a_warmup_the_first_updates_are_the_largest(
    kind: Literal["warmup_linear", "warmup_cosine"],
) -> None:
    values = rates(Schedule(type=kind, total_steps=10, warmup_steps=0))
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(1e-3, rel=0.1)


@given(schedules)
def test_rates_rise_over_the_warmup_fall_after_it_and_stay_in_bounds(schedule: Schedule) -> None:
    values = rates(schedule)
    peak = values.index(max(values))
    assert peak in (max(schedule.warmup_steps - 1, 0), schedule.warmup_steps)
    assert values[:peak] == sorted(values[:peak])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert all(0 < rate <= 1e-3 * (1 + 1e-12) for rate in values)
