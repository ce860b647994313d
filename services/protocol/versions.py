"""Numbers that identify stale messages: protocol version, weight versions, epochs and generations."""

from __future__ import annotations

from typing import NamedTuple

PROTOCOL_VERSION = 10
"""Newest version of the protocol that this program speaks."""
PROTOCOL_MIN = 10
"""Oldest version of the protocol that this program speaks: the newest of the minor version of Tiermesh before."""
LAST_GENERATION = LAST_EPOCH = (1 << 32) - 1
"""Largest generation and epoch. Both are 32 bits in messages: the epoch is the upper half of a lease id."""
MAX_EPOCH_LEAP = 1 << 16
"""Most epochs that an aggregator skips at once because a peer has obeyed a newer one. Each start takes one epoch."""


class Version(NamedTuple):
    """A weight version: (generation, step)."""

    generation: int
    step: int

    @property
    def following(self) -> Version:
        """Version that the COMMIT of this version's step creates."""
        return Version(self.generation, self.step + 1)
