"""Arithmetic on flat float32 arrays that gives the same bits on every host, for every cut of the array.

Everything here is element-wise, or a sum whose order is fixed by the code: single IEEE operations only, never
a library's own reduction or a BLAS call, whose order of additions changes with version, CPU and thread count.

Each function has a compiled path (compiled.py) and a numpy path with the same bits; compiler.py chooses, for the
process. Of a NaN neither sign nor payload is promised, except in what goes on the wire in 16 bits. All release the
GIL; arrays are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels import compiler, crc32c, wire_types
from services.tensors.kernels.wire_types import STORED, Payload, WireDType

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]

BLOCK_ELEMENTS = 64 * 1024
"""Elements of one block of the global norm; a chunk of the layout is a whole number of blocks."""


COMPILED = "services.tensors.kernels.compiled_arithmetic"
"""The module of the compiled paths of these functions."""


def load_kernels() -> None:
    """Have compiled kernels ready, and say in the log which path computes; the first kernel called does it otherwise.

    Raises:
        Refused: the environment asks for kernels that can't be had.
    """
    for module in (COMPILED, crc32c.COMPILED):
        compiler.load(module)


def accumulate(into: Float32Array, other: Float32Array) -> None:
    """Add `other` to `into` in place; both [n] float32, `other` the right operand."""
    compiled = compiler.load(COMPILED)
    if compiled is None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(into, other, out=into)
    else:
        compiled.accumulate(into, _of_size(other, into))


def add(left: Float32Array, right: Float32Array, out: Float32Array) -> None:
    """Write the sum of two sibling nodes, [n] float32 each, into `out`, which may be either of them."""
    compiled = compiler.load(COMPILED)
    if compiled is None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(left, right, out=out)
    elif _is(out, left):
        compiled.accumulate(out, _of_size(right, out))
    elif _is(out, right):
        compiled.accumulate(out, _of_size(left, out))
    else:
        compiled.add(_of_size(left, out), _of_size(right, out), out)


def scale(values: Float32Array, factor: float, out: Float32Array) -> None:
    """Write `values` times float32(`factor`) into `out`, which may be `values`; [n] float32."""
    compiled = compiler.load(COMPILED)
    if compiled is None or _is(out, values):
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(values, np.float32(factor), out=out)
    else:
        compiled.scale(_of_size(values, out), np.float32(factor), out)


def all_finite(values: Float32Array) -> bool:
    """Whether none of [n] float32 is a NaN or an infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a copy; beyond 1e19 finite values overflow it too.
        screened = np.dot(values, values)
    return bool(np.isfinite(screened)) or bool(np.isfinite(values).all())


def to_wire(
    values: Float32Array, dtype: WireDType, place: NDArray[np.uint8] | None = None
) -> NDArray[np.float32] | NDArray[np.uint16]:
    """The payload of `values`, [n] float32: [n] float32 for fp32, else the bits of 16-bit floats, [n] uint16.

    Rounded to nearest, ties to even; every NaN becomes one NaN. For fp32 it is `values` itself where that is
    contiguous, so it must not change until sent. With a `place`, bytes as many as the payload has, it is written there
    (but for values that lie there already).
    """
    if dtype == "fp32":
        if place is None:
            return np.ascontiguousarray(values, STORED["fp32"])
        stored = _of_size(place.view(STORED["fp32"]), values)
        if not _is(stored, values):
            np.copyto(stored, values)
        return stored
    out: NDArray[np.uint16] = (
        np.empty(values.size, STORED[dtype]) if place is None else _of_size(place.view(STORED[dtype]), values)
    )
    compiled = compiler.load(COMPILED)
    if compiled is None:
        wire_types.narrow(values, out, dtype)
    elif dtype == "bf16":
        compiled.narrow_bf16(values, out)
    else:
        compiled.narrow_fp16(values, out)
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
    copy_from_wire(payload, dtype, out)
    return out


def copy_from_wire(payload: Payload, dtype: WireDType, out: Float32Array) -> None:
    """Write the elements of a payload into `out`, [n] float32.

    Raises:
        ValueError: the payload has not n elements.
    """
    stored = _of_size(np.frombuffer(payload, STORED[dtype]), out)
    compiled = compiler.load(COMPILED)
    if dtype == "fp32":
        np.copyto(out, stored)
    elif compiled is None:
        wire_types.widen(stored, out, dtype)
    elif dtype == "bf16":
        compiled.widen_bf16(stored, out)
    else:
        compiled.widen_fp16(stored, out)


def accumulate_wire(into: Float32Array, payload: Payload, dtype: WireDType) -> None:
    """Add the elements of a payload to `into`, [n] float32, in place; the sum is rounded once, to float32.

    Raises:
        ValueError: the payload has not n elements.
    """
    stored = _of_size(np.frombuffer(payload, STORED[dtype]), into)
    compiled = compiler.load(COMPILED)
    if dtype == "fp32":
        accumulate(into, stored)
    elif compiled is None:
        wire_types.accumulate_narrow(into, stored, dtype)
    elif dtype == "bf16":
        compiled.accumulate_bf16(into, stored)
    else:
        compiled.accumulate_fp16(into, stored)


def norm_squared_blocks(values: Float32Array) -> Float64Array:
    """The sum of squares of each block of 64 Ki elements: [n] float32 to [ceil(n / 64 Ki)] float64.

    Within a block, padded with zeros, the upper half is added to the lower half until one element is left. A
    block's sum is finite if and only if all its elements are: squares of float32 can't overflow float64.
    """
    blocks = -(-values.size // BLOCK_ELEMENTS)
    sums = np.empty(blocks, np.float64)
    squares = np.empty(BLOCK_ELEMENTS, np.float64)
    compiled = compiler.load(COMPILED)
    if compiled is not None:
        compiled.norm_squared_blocks(values, squares, sums)
        return sums
    for block in range(blocks):
        part = values[block * BLOCK_ELEMENTS : (block + 1) * BLOCK_ELEMENTS]
        used = squares[: part.size]
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(used, part)
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


def _is(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether two arrays of one size are the same memory."""
    return left is right or left.ctypes.data == right.ctypes.data


def _of_size(values: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """`values`, if it has as many elements as `other`: compiled loops don't look."""
    if values.shape != other.shape:
        raise ValueError(f"{values.size} elements, expected {other.size}")
    return values
