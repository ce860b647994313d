"""Succession of aggregators: time alone decides when a standby takes over.

A leader beats, and a standby looks. Each uses its own clock, since the clocks of two hosts are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.errors import Failed

SKIPPED_EPOCHS = range(256, 8_448)
"""Numbers of epochs that a restored queue may skip: far below `MAX_EPOCH_LEAP`."""


class Deposed(Failed):
    """Loss of the leadership: another aggregator has taken over, or may at any moment."""


class EpochBehind(Failed):
    """A peer of this cluster has obeyed a newer epoch, though no aggregator took over through this queue.

    The queue was restored from a backup.

    Args:
        peer: the peer, for people.
        obeyed_epoch: the epoch that it has obeyed.

    Attributes:
        obeyed_epoch: as above.
    """

    def __init__(self, peer: str, obeyed_epoch: int) -> None:
        super().__init__(f"{peer} has obeyed epoch {obeyed_epoch}, which is newer than this aggregator's")
        self.obeyed_epoch = obeyed_epoch


@dataclass(frozen=True)
class LeaderSighting:
    """The leader as a standby sees it.

    Attributes:
        epoch: the leader's epoch; 0 if there never was a leader.
        beat: a counter that changes while the leader lives.
        leader: the leader's name.
        takeover_seconds: time without a beat after which a standby may take over; 0 for at once.
        known: whether the leader knew of this standby before; it beats only for standbys it knows.
    """

    epoch: int
    beat: int
    leader: str
    takeover_seconds: float
    known: bool = field(default=True, compare=False)


def raise_restored_epoch(backup: int, replaced: int, chance: float) -> int:
    """Return the epoch of a restored queue, which its aggregator exceeds: above any that was seen, as far as is known.

    The queue that is replaced may be lost, and aggregators that have started since the backup with it. So the epoch
    skips more than usually start between two backups. Two restores of one backup skip different numbers.

    Args:
        backup: the epoch in the backup.
        replaced: the epoch of the queue that is replaced, or one that a peer has obeyed; 0 if it is unknown.
        chance: a random number from 0 up to but not including 1.
    """
    return max(backup, replaced) + SKIPPED_EPOCHS[int(chance * len(SKIPPED_EPOCHS))]


class Succession:
    """Decides when a standby takes over.

    Args:
        takeover_seconds: least time without a beat; the leader's own setting counts if it is longer.
    """

    def __init__(self, takeover_seconds: float) -> None:
        self._takeover_seconds = takeover_seconds
        self._seen = (-1, -1)
        self._since_seconds = 0.0

    def is_due(self, sighting: LeaderSighting, now_seconds: float) -> bool:
        """Record a sighting and return whether the leader is gone."""
        if not sighting.takeover_seconds:
            return True
        if (sighting.epoch, sighting.beat) != self._seen or not sighting.known:
            self._seen, self._since_seconds = (sighting.epoch, sighting.beat), now_seconds
        return self.silent_seconds(now_seconds) > max(self._takeover_seconds, sighting.takeover_seconds)

    def silent_seconds(self, now_seconds: float) -> float:
        """Return for how long no new beat was seen."""
        return now_seconds - self._since_seconds


class Standbys:
    """The standbys that a leader knows of, by name.

    Args:
        forget_seconds: time without a look after which a standby is forgotten.
    """

    def __init__(self, forget_seconds: float) -> None:
        self._forget_seconds = forget_seconds
        self._looked: dict[str, tuple[int, float]] = {}  # number of looks, and when it last changed

    def __bool__(self) -> bool:
        return bool(self._looked)

    def update(self, looks: Mapping[str, int], now_seconds: float) -> list[str]:
        """Record each standby's number of looks; return the names to forget."""
        for name, count in looks.items():
            if self._looked.get(name, (-1, 0.0))[0] != count:
                self._looked[name] = (count, now_seconds)
        self._looked = {name: seen for name, seen in self._looked.items() if name in looks}
        return [
            name for name, since in self.silent_seconds(now_seconds).items() if since > self._forget_seconds
        ]

    def silent_seconds(self, now_seconds: float) -> dict[str, float]:
        """Return for each standby how long ago it looked."""
        return {name: now_seconds - seconds for name, (_, seconds) in self._looked.items()}
