"""Who leads and who may take over, as far as time decides it. Pure.

A leader beats, and a standby looks; each by a clock of its own, since those of two hosts are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.errors import Failed


class Deposed(Failed):
    """This aggregator leads no longer: another one has taken over, or may."""


@dataclass(frozen=True)
class LeaderSighting:
    """What a standby sees of the leader.

    Attributes:
        epoch: of the leader; 0: nobody ever led.
        beat: changes while the leader lives.
        leader: its name.
        takeover_seconds: for how long the beat must not change before a standby takes over; 0: it may at once.
        known: whether the leader knew of this standby before; it beats for those that it knows of.
    """

    epoch: int
    beat: int
    leader: str
    takeover_seconds: float
    known: bool = field(default=True, compare=False)


class Succession:
    """When a standby takes over.

    Args:
        takeover_seconds: least time without a beat; the leader's own counts if that is longer.
    """

    def __init__(self, takeover_seconds: float) -> None:
        self._takeover_seconds = takeover_seconds
        self._seen = (-1, -1)
        self._since_seconds = 0.0

    def is_due(self, sight: LeaderSighting, now_seconds: float) -> bool:
        """Take a look; whether the leader is gone."""
        if not sight.takeover_seconds:
            return True
        if (sight.epoch, sight.beat) != self._seen or not sight.known:
            self._seen, self._since_seconds = (sight.epoch, sight.beat), now_seconds
        return self.silent_seconds(now_seconds) > max(self._takeover_seconds, sight.takeover_seconds)

    def silent_seconds(self, now_seconds: float) -> float:
        """How long no beat was seen."""
        return now_seconds - self._since_seconds


class Standbys:
    """Who stands by for a leader, by name.

    Args:
        forget_seconds: one that has not looked for this long is forgotten.
    """

    def __init__(self, forget_seconds: float) -> None:
        self._forget_seconds = forget_seconds
        self._looked: dict[str, tuple[int, float]] = {}  # how often, and when that last changed

    def __bool__(self) -> bool:
        return bool(self._looked)

    def saw(self, looks: Mapping[str, int], now_seconds: float) -> list[str]:
        """Take how often each has looked; who is to be forgotten."""
        for name, count in looks.items():
            if self._looked.get(name, (-1, 0.0))[0] != count:
                self._looked[name] = (count, now_seconds)
        self._looked = {name: seen for name, seen in self._looked.items() if name in looks}
        return [
            name for name, since in self.silent_seconds(now_seconds).items() if since > self._forget_seconds
        ]

    def silent_seconds(self, now_seconds: float) -> dict[str, float]:
        """How long ago each looked."""
        return {name: now_seconds - seconds for name, (_, seconds) in self._looked.items()}
