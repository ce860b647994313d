"""Backoff: waiting times double up to a limit and are drawn at random."""

from __future__ import annotations

from services.transport.backoff import Backoff


def test_waits_double_up_to_a_limit_and_vary() -> None:
    backoff = Backoff(first_seconds=1.0, max_seconds=5.0)
    for most in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert most / 2 <= backoff.next_seconds() <= most
    backoff.set_max(0.5)
    drawn = {backoff.next_seconds() for _ in range(20)}
    assert 0.25 <= min(drawn) < max(drawn) <= 0.5
    backoff.set_max(5.0)
    backoff.reset()
    assert backoff.next_seconds() <= 1.0
