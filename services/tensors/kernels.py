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

from services.tensors import wire_types
from services.tensors.wire_types import STORED, Payload, WireDType

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


def to_wire(values: Float32Array, dtype: WireDType) -> NDArray[np.float32] | NDArray[np.uint16]:
    """The payload of `values`, [n] float32: [n] float32 for fp32, else the bits of 16-bit floats, [n] uint16.

    Rounded to nearest, ties to even; every NaN becomes one NaN. For fp32 it is `values` itself where that is
    contiguous, so it must not change until sent.
    """
    if dtype == "fp32":
        return np.ascontiguousarray(values, STORED["fp32"])
    out: NDArray[np.uint16] = np.empty(values.size, STORED[dtype])
    wire_types.narrow(values, out, dtype)
    return out


def from_wire(payload: Payload, dtype: WireDType) -> Float32Array:
    """The elements of a payload as [n] float32: for fp32 a view, read-only if the payload is; else a new array.

    Raises:
        ValueError: the payload is no whole number of elements.
    """
    stored = np.frombuffer(payload, STORED[dtype])
    if dtype == "fp32":
        return stored
    out = np.empty(stored.size, np.float32)
    wire_types.widen(stored, out, dtype)
    return out


def accumulate_wire(into: Float32Array, payload: Payload, dtype: WireDType) -> None:
    """Add the elements of a payload to `into`, [n] float32, in place; the sum is rounded once, to float32.

    Raises:
        ValueError: the payload has not n elements.
    """
    stored = np.frombuffer(payload, STORED[dtype])
    if stored.shape != into.shape:
        raise ValueError(f"a payload of {stored.size} elements for {into.size}")
    if dtype == "fp32":
        accumulate(into, stored)
    else:
        wire_types.accumulate_narrow(into, stored, dtype)


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
