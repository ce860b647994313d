"""Workers that claim the same speed, wherever they wait, so that each gets work in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

from worker.core import events


@dataclass(frozen=True)
class _LeaseComputed(events.LeaseComputed):
    """Report of a computed lease that claims a time."""

    seconds_per_token: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", self.seconds_per_token * self.tokens)


def claim_equal_speed(seconds_per_token: float = 1e-9) -> None:
    """Let this daemon claim that a token takes it a time. By default no lease takes less, so it is believed."""
    _LeaseComputed.seconds_per_token = seconds_per_token
    mock.patch.object(events, "LeaseComputed", _LeaseComputed).start()
