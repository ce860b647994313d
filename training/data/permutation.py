"""Pseudo-random permutation of 0..size-1, computed element by element.

A list of 10^11 places would fill a machine; here any place of the order costs the same. A Feistel network permutes the
smallest power of four that is at least `size`. What falls outside is permuted again until it falls inside, which is
cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). All arithmetic is on unsigned 64-bit
integers, so every machine gets the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.seeds import make_generator

MOST_ELEMENTS = 1 << 62
"""Largest permutation."""
_ROUNDS = 8

Integers = npt.NDArray[np.uint64]


class Permutation:
    """An order of the numbers 0..size-1 that follows from names.

    Args:
        size: number of elements, at most `MOST_ELEMENTS`.
        *names: what the order depends on, such as a seed and the number of an epoch.
    """

    def __init__(self, size: int, *names: int | str) -> None:
        if not 1 <= size <= MOST_ELEMENTS:
            raise ValueError(f"permutation of {size} elements, expected 1 to {MOST_ELEMENTS}")
        self._size = np.uint64(size)
        half_bits = max(1, -(-(size - 1).bit_length() // 2))
        self._half_bits, self._half_mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
        self._keys: Integers = make_generator("permutation", size, *names).random_raw(_ROUNDS)

    def __call__(self, places: Integers) -> Integers:
        """Return the elements at these places of the order, uint64 of the same shape.

        Args:
            places: uint64, each below `size`.
        """
        elements = self._permute(places)
        while (
            outside := elements >= self._size
        ).any():  # ends: the walk returns to its start, which is inside
            elements[outside] = self._permute(elements[outside])
        return elements

    def _permute(self, values: Integers) -> Integers:
        """Return the values permuted within the smallest power of four that is at least `size`."""
        left, right = values >> self._half_bits, values & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        mixed: Integers = left << self._half_bits | right
        return mixed


def _mix(values: Integers) -> Integers:
    """Return each value with its bits mixed: the last steps of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
