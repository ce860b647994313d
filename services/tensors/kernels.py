"""Arithmetic on flat float32 arrays that gives the same bits on every host, for every cut of the array.

Everything here is element-wise, or a sum whose order is fixed by the code: single IEEE operations only, never
a library's own reduction or a BLAS call, whose order of additions changes with version, CPU and thread count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]

BLOCK_ELEMENTS = 64 * 1024
"""Elements of one block of the global norm; a chunk of the layout is a whole number of blocks."""


def accumulate(into: Float32Array, other: Float32Array) -> None:
    """Add `other` to `into` in place; both [n] float32, `other` the right operand."""
    np.add(into, other, out=into)


def add(left: Float32Array, right: Float32Array, out: Float32Array) -> None:
    """Write the sum of two sibling nodes, [n] float32 each, into `out`, which may be either of them."""
    np.add(left, right, out=out)


def scale(values: Float32Array, factor: float, out: Float32Array) -> None:
    """Write `values` times float32(`factor`) into `out`, which may be `values`; [n] float32."""
    np.multiply(values, np.float32(factor), out=out)


def norm_squared_blocks(values: Float32Array) -> Float64Array:
    """The sum of squares of each block of 64 Ki elements: [n] float32 to [ceil(n / 64 Ki)] float64.

    Within a block, padded with zeros, the upper half is added to the lower half until one element is left. A
    block's sum is finite if and only if all its elements are: squares of float32 can't overflow float64.
    """
    blocks = -(-values.size // BLOCK_ELEMENTS)
    sums = np.empty(blocks, np.float64)
    squares = np.empty(BLOCK_ELEMENTS, np.float64)
    for block in range(blocks):
        part = values[block * BLOCK_ELEMENTS : (block + 1) * BLOCK_ELEMENTS]
        used = squares[: part.size]
        np.copyto(used, part)
        with np.errstate(invalid="ignore"):
            np.multiply(used, used, out=used)
            squares[part.size :] = 0.0
            half = BLOCK_ELEMENTS // 2
            while half:
                np.add(squares[:half], squares[half : 2 * half], out=squares[:half])
                half //= 2
        sums[block] = squares[0]
    return sums


def norm(block_sums: Sequence[float] | Float64Array) -> float:
    """The global norm from the block sums of the whole layout; infinite or NaN if an element is not finite.

    The block sums are added without intermediate rounding: the built-in `sum` would give other bits in Python
    3.11 and 3.12.
    """
    return math.sqrt(math.fsum(block_sums))
