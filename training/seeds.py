"""Random numbers that follow from names, such as those of a job, a step, a micro-batch, a parameter or a dropout site.

The same names give the same numbers on every worker and in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np


def _digest(parts: tuple[int | str, ...]) -> bytes:
    """Return 16 bytes that depend on every part and on the boundaries between them."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def make_generator(*parts: int | str) -> np.random.Philox:
    """Return the counter-based bit generator for these names."""
    return np.random.Philox(key=int.from_bytes(_digest(parts), "little"))


def derive_seed32(*parts: int | str) -> int:
    """Return a seed in [0, 2^32) for these names; the device library takes no larger ones."""
    return int.from_bytes(_digest(parts)[:4], "little")


def derive_dropout_seeds(seed: int, step: int, index: int) -> Callable[[str], int]:
    """Return the seeds of a micro-batch's dropout sites, as a function of the site's name.

    Args:
        seed: seed of the job.
        step: step of the job.
        index: index of the micro-batch in the step.
    """
    return lambda site: derive_seed32(seed, "dropout", step, index, site)
