"""Arithmetic on flat float32 arrays that gives the same bits on every host, however the array is cut into ranges.

Everything here is element-wise, or a sum whose order the code fixes. It uses single IEEE 754 operations only. A
library's reduction or a BLAS call would add in an order that changes with version, CPU and thread count.

Each function has a compiled path (compiled_arithmetic.py) and a numpy path with the same bits. compiler.py chooses one
for the whole process. Sign and payload of a NaN are unspecified, except in 16-bit wire types. All functions release
the GIL and take contiguous arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels import compiler, crc32c, wire_types
from services.tensors.kernels.wire_types import STORED, Payload, WireDType

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]

BLOCK_ELEMENTS = 64 * 1024
"""Number of elements of a block of the global norm. A chunk of the layout is a whole number of blocks."""

COMPILED_MODULE = "services.tensors.kernels.compiled_arithmetic"
"""Name of the module with the compiled paths of these functions."""


def load_kernels() -> None:
    """Load or compile the kernels, and log which path computes. Otherwise the first kernel call does so.

    Raises:
        Refused: the environment asks for compiled kernels that are not available.
    """
    for module in (COMPILED_MODULE, crc32c.COMPILED_MODULE):
        compiler.load(module)


def accumulate(into: Float32Array, other: Float32Array) -> None:
    """Add `other` to `into` in place. Both are [n] float32; `into` is the left operand."""
    compiled = compiler.load(COMPILED_MODULE)
    if compiled is None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(into, other, out=into)
    else:
        compiled.accumulate(into, _check_size(other, into))


def add(left: Float32Array, right: Float32Array, out: Float32Array) -> None:
    """Write `left + right` into `out`. All are [n] float32; `out` may be either operand."""
    compiled = compiler.load(COMPILED_MODULE)
    if compiled is None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(left, right, out=out)
    elif _same_memory(out, left):
        compiled.accumulate(out, _check_size(right, out))
    elif _same_memory(out, right):
        compiled.accumulate(out, _check_size(left, out))
    else:
        compiled.add(_check_size(left, out), _check_size(right, out), out)


def scale(values: Float32Array, factor: float, out: Float32Array) -> None:
    """Write `values * float32(factor)` into `out`. Both arrays are [n] float32; `out` may be `values`."""
    compiled = compiler.load(COMPILED_MODULE)
    if compiled is None or _same_memory(out, values):
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(values, np.float32(factor), out=out)
    else:
        compiled.scale(_check_size(values, out), np.float32(factor), out)


def all_finite(values: Float32Array) -> bool:
    """Return whether no element of `values`, [n] float32, is a NaN or an infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a copy. Finite values above 1e19 overflow it too, hence the second look.
        screened = np.dot(values, values)
    return bool(np.isfinite(screened)) or bool(np.isfinite(values).all())


def to_wire(
    values: Float32Array, dtype: WireDType, place: NDArray[np.uint8] | None = None
) -> NDArray[np.float32] | NDArray[np.uint16]:
    """Convert values to a wire type.

    Values are rounded to nearest, ties to even (IEEE 754). Every NaN becomes the same NaN.

    Args:
        values: [n] float32.
        dtype: wire type.
        place: [payload bytes] uint8 to write the payload to; None for an array of its own.

    Returns:
        The payload: [n] float32 for fp32, else the bits of 16-bit floats, [n] uint16. For fp32 without a place it is
        `values` itself if that is contiguous, which then must not change until it is sent.
    """
    if dtype == "fp32":
        if place is None:
            return np.ascontiguousarray(values, STORED["fp32"])
        stored = _check_size(place.view(STORED["fp32"]), values)
        if not _same_memory(stored, values):
            np.copyto(stored, values)
        return stored
    out: NDArray[np.uint16] = (
        np.empty(values.size, STORED[dtype])
        if place is None
        else _check_size(place.view(STORED[dtype]), values)
    )
    compiled = compiler.load(COMPILED_MODULE)
    if compiled is None:
        wire_types.narrow(values, out, dtype)
    elif dtype == "bf16":
        compiled.narrow_bf16(values, out)
    else:
        compiled.narrow_fp16(values, out)
    return out


def from_wire(payload: Payload, dtype: WireDType) -> Float32Array:
    """Return the elements of a payload, [n] float32: for fp32 a view of it, else a new array. Nothing is rounded.

    Raises:
        ValueError: the payload is not a whole number of elements.
    """
    stored = np.frombuffer(payload, STORED[dtype])
    if dtype == "fp32":
        return stored
    out = np.empty(stored.size, np.float32)
    copy_from_wire(payload, dtype, out)
    return out


def copy_from_wire(payload: Payload, dtype: WireDType, out: Float32Array) -> None:
    """Write the elements of a payload into `out`, [n] float32. The bits are those of `from_wire`.

    Raises:
        ValueError: the payload does not have n elements.
    """
    stored = _check_size(np.frombuffer(payload, STORED[dtype]), out)
    compiled = compiler.load(COMPILED_MODULE)
    if dtype == "fp32":
        np.copyto(out, stored)
    elif compiled is None:
        wire_types.widen(stored, out, dtype)
    elif dtype == "bf16":
        compiled.widen_bf16(stored, out)
    else:
        compiled.widen_fp16(stored, out)


def accumulate_wire(into: Float32Array, payload: Payload, dtype: WireDType) -> None:
    """Add the elements of a payload to `into`, [n] float32, in place.

    The bits are those of `accumulate` after `from_wire`, without the array between them.

    Raises:
        ValueError: the payload does not have n elements.
    """
    stored = _check_size(np.frombuffer(payload, STORED[dtype]), into)
    compiled = compiler.load(COMPILED_MODULE)
    if dtype == "fp32":
        accumulate(into, stored)
    elif compiled is None:
        wire_types.accumulate_narrow(into, stored, dtype)
    elif dtype == "bf16":
        compiled.accumulate_bf16(into, stored)
    else:
        compiled.accumulate_fp16(into, stored)


def norm_squared_blocks(values: Float32Array) -> Float64Array:
    """Return the sum of squares of each block of 64 Ki elements.

    A block is padded with zeros. Then its upper half is added to its lower half until one element is left. This fixes
    the order of additions. A block's sum is finite if and only if all its elements are, since squares of float32
    can't overflow float64.

    Args:
        values: [n] float32.

    Returns:
        [ceil(n / 65536)] float64.
    """
    blocks = -(-values.size // BLOCK_ELEMENTS)
    sums = np.empty(blocks, np.float64)
    squares = np.empty(BLOCK_ELEMENTS, np.float64)
    compiled = compiler.load(COMPILED_MODULE)
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


def _same_memory(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return whether two arrays of the same size begin at the same address."""
    return left is right or left.ctypes.data == right.ctypes.data


def _check_size(values: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return `values` if its shape is that of `other`; compiled loops do not check bounds."""
    if values.shape != other.shape:
        raise ValueError(f"{values.size} elements, expected {other.size}")
    return values
