"""Arithmetic on flat float32 arrays that gives the same bits on every host, however the array is cut into ranges.

Everything here is element-wise, or a sum whose order the code fixes. It uses single IEEE 754 operations only. A
library's reduction or a BLAS call would add in an order that changes with version, CPU and thread count.

The kernels of native/ compute; they check nothing, so these functions check type, size and contiguity before. Sign and
payload of a NaN are unspecified, except in 16-bit wire types. All functions release the GIL.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from native.library import KERNELS
from services.tensors.kernels.wire_types import STORED, Payload, WireDType

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]

BLOCK_ELEMENTS = 64 * 1024
"""Number of elements of a block of the global norm. A chunk of the layout is a whole number of blocks."""


def accumulate(into: Float32Array, other: Float32Array) -> None:
    """Add `other` to `into` in place. Both are [n] float32; `into` is the left operand."""
    add(into, other, into)


def add(left: Float32Array, right: Float32Array, out: Float32Array) -> None:
    """Write `left + right` into `out`. All are [n] float32; `out` may be either operand."""
    n = out.size
    KERNELS.add(address(left, n), address(right, n), address(out, n, written=True), n)


def scale_with_norm(values: Float32Array, factor: float, out: Float32Array) -> Float64Array:
    """Write `values * float32(factor)` into `out`, and return the sum of squares of each block of 64 Ki elements.

    A block is padded with zeros. Then its upper half is added to its lower half until one element is left. This fixes
    the order of additions. A block's sum is finite if and only if all its elements are, since squares of float32
    can't overflow float64.

    Args:
        values: [n] float32.
        factor: rounded to float32 before it is used.
        out: [n] float32; may be `values`.

    Returns:
        [ceil(n / 65536)] float64.
    """
    n = out.size
    sums = np.empty(-(-n // BLOCK_ELEMENTS), np.float64)
    KERNELS.scale_with_norm(address(values, n), factor, address(out, n, written=True), sums.ctypes.data, n)
    return sums


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
    n = values.size
    if dtype == "fp32" and place is None:
        return np.ascontiguousarray(values, STORED["fp32"])
    stored: NDArray[Any] = np.empty(n, STORED[dtype]) if place is None else place.view(STORED[dtype])
    if stored.size != n:
        raise ValueError(f"{stored.size} elements, expected {n}")
    if dtype != "fp32":
        narrow = KERNELS.narrow_bf16 if dtype == "bf16" else KERNELS.narrow_fp16
        narrow(address(values, n), address(stored, n, np.uint16, written=True), n)
    elif stored.ctypes.data != values.ctypes.data:
        np.copyto(stored, values)
    return stored


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
    stored, n = np.frombuffer(payload, STORED[dtype]), out.size
    if stored.size != n:
        raise ValueError(f"{stored.size} elements, expected {n}")
    if dtype == "fp32":
        np.copyto(out, stored)
    else:
        widen = KERNELS.widen_bf16 if dtype == "bf16" else KERNELS.widen_fp16
        widen(address(stored, n, np.uint16), address(out, n, written=True), n)


def accumulate_wire(into: Float32Array, payload: Payload, dtype: WireDType) -> None:
    """Add the elements of a payload to `into`, [n] float32, in place.

    The bits are those of `accumulate` after `from_wire`, without the array between them.

    Raises:
        ValueError: the payload does not have n elements.
    """
    stored, n = np.frombuffer(payload, STORED[dtype]), into.size
    if dtype == "fp32":
        accumulate(into, stored)
    else:
        add_narrow = KERNELS.add_bf16 if dtype == "bf16" else KERNELS.add_fp16
        add_narrow(address(into, n, written=True), address(stored, n, np.uint16), n)


def address(
    array: NDArray[Any], size: int, dtype: type[np.generic] = np.float32, *, written: bool = False
) -> int:
    """Return the address of an array's elements for a kernel, which checks nothing.

    Args:
        array: the array; its elements may begin at any address.
        size: number of elements that it must have.
        dtype: their type.
        written: whether the kernel writes to it.

    Raises:
        ValueError: size or type differ, the elements are not contiguous, or the array can't be written to.
    """
    place: int
    place, read_only = array.__array_interface__["data"]
    if array.size != size:
        raise ValueError(f"{array.size} elements, expected {size}")
    if array.dtype != dtype or not array.flags.c_contiguous or (written and read_only):
        raise ValueError(
            f"{array.dtype} array, {array.strides} bytes apart{', read-only' if read_only else ''}: expected "
            f"contiguous {np.dtype(dtype)}{' that can be written to' if written else ''}"
        )
    return place
