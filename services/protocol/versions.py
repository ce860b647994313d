"""What is counted so that stale messages can be told: the protocol, weight versions, epochs and generations."""

from __future__ import annotations

from typing import NamedTuple

PROTOCOL_VERSION = 2
LAST_GENERATION = LAST_EPOCH = (1 << 32) - 1
"""That messages can name: a generation is a uint32, and so is the half of a lease id that holds the epoch."""


class Version(NamedTuple):
    """A weight version: (generation, step)."""

    generation: int
    step: int

    @property
    def following(self) -> Version:
        """The version that a COMMIT of this one's step makes."""
        return Version(self.generation, self.step + 1)
