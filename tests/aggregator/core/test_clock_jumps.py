"""Ages are not believed for a day after the host's clock was set forward."""

from __future__ import annotations

import pytest

from aggregator.core.clock_jumps import DISTRUST_SECONDS, ClockJumps

YEAR_SECONDS = 365 * 86_400.0


def test_a_clock_that_goes_evenly_is_believed() -> None:
    jumps = ClockJumps()
    for elapsed in (0.0, 1.0, 5000.0, 1e6):
        assert jumps.note(1e9 + elapsed * 1.001, elapsed) == 0
        assert jumps.believes_ages(elapsed)


@pytest.mark.parametrize("jump_seconds", [7200.0, 10 * YEAR_SECONDS])
def test_a_clock_that_was_set_forward_is_believed_after_a_day(jump_seconds: float) -> None:
    jumps = ClockJumps()
    jumps.note(1e9, 0.0)
    assert jumps.note(1e9 + 60 + jump_seconds, 60.0) == pytest.approx(jump_seconds)
    assert not jumps.believes_ages(60.0)
    assert jumps.note(1e9 + 120 + jump_seconds, 120.0) == 0, "it is told once"
    assert not jumps.believes_ages(59.0 + DISTRUST_SECONDS)
    assert jumps.believes_ages(60.0 + DISTRUST_SECONDS)


def test_a_clock_that_was_set_back_is_believed() -> None:
    jumps = ClockJumps()
    jumps.note(1e9, 0.0)
    assert jumps.note(1e9 - YEAR_SECONDS, 60.0) == 0
    assert jumps.believes_ages(60.0)
    assert jumps.note(1e9 + 120, 120.0) > 0, "and forward again"
