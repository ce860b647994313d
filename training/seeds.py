"""Random numbers that follow from names: of a job, a step, a micro-batch, a parameter, a dropout site.

Whoever draws, on whichever worker, in whatever order, draws the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(parts: tuple[int | str, ...]) -> bytes:
    """16 bytes that hang on every part and on where one ends and the next begins."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def generator(*parts: int | str) -> np.random.Philox:
    """The counter-based bit generator of these names."""
    return np.random.Philox(key=int.from_bytes(_digest(parts), "little"))


def seed32(*parts: int | str) -> int:
    """A seed in [0, 2^32) of these names; the device library takes no larger ones."""
    return int.from_bytes(_digest(parts)[:4], "little")
