"""Tests of the token bucket: no time sees more than rate x time + burst, and nothing waits longer than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.token_bucket import TokenBucket

RATE, BURST = 8, 32
STEPS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, BURST)), max_size=40)
"""Pauses in eighths of a second, and tokens; exact in floating point."""


def take_all(steps: list[tuple[int, int]]) -> list[tuple[float, int]]:
    """Take tokens one after the other, each after a pause and the wait; return when each were taken."""
    bucket, now, taken = TokenBucket(RATE, BURST), 1000.0, []
    for pause, tokens in steps:
        now += pause / 8
        now += bucket.seconds_until(tokens, now)
        bucket.take(tokens, now)
        taken.append((now, tokens))
    return taken


@given(STEPS)
def test_no_window_gets_more_than_its_time_and_a_burst(steps: list[tuple[int, int]]) -> None:
    taken = take_all(steps)
    for first, (start, _) in enumerate(taken):
        for last in range(first, len(taken)):
            tokens = sum(each for _, each in taken[first : last + 1])
            assert tokens <= RATE * (taken[last][0] - start) + BURST


@given(STEPS)
def test_a_wait_ends_as_soon_as_the_tokens_are_there(steps: list[tuple[int, int]]) -> None:
    level, before, arrival = float(BURST), 1000.0, 1000.0
    for (pause, tokens), (now, _) in zip(steps, take_all(steps), strict=True):
        arrival = before + pause / 8
        level = min(BURST, level + RATE * (arrival - before))
        assert now - arrival == max(0.0, (tokens - level) / RATE)
        level = min(BURST, level + RATE * (now - arrival)) - tokens
        before = now


def test_more_than_a_burst_waits_for_a_full_bucket_and_is_paid_for() -> None:
    bucket = TokenBucket(RATE, BURST)
    assert bucket.seconds_until(2 * BURST, 5.0) == 0.0
    bucket.take(2 * BURST, 5.0)
    assert bucket.seconds_until(BURST, 5.0) == pytest.approx(2 * BURST / RATE)
