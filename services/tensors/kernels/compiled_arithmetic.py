"""Compiled kernels of arithmetic.py, each one pass over memory. Import this module through `compiler.load` only.

Each function gives the same bits as the numpy path in arithmetic.py and wire_types.py. Input arrays may be read-only,
as received payloads are. Arrays need not be aligned, since a payload begins anywhere in its message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from services.tensors.kernels.compiler import jit


def _array(dtype: Any, *, readonly: bool) -> Any:
    return types.Array(dtype, 1, "C", readonly=readonly, aligned=False)


_float32_in, _float32_out = _array(types.float32, readonly=True), _array(types.float32, readonly=False)
_bits16_in, _bits16_out = _array(types.uint16, readonly=True), _array(types.uint16, readonly=False)
_float64_out = _array(types.float64, readonly=False)


def _as_uint32(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _as_float32(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


_bits: Any = intrinsic(_as_uint32)  # float32 to its bits, uint32
_float: Any = intrinsic(_as_float32)  # bits, uint32, to float32


@jit(types.void(_float32_in, _float32_in, _float32_out))
def add(left: Any, right: Any, out: Any) -> None:
    """Compute `out = left + right`, [n] float32 each. `out` must be neither operand, or the loop is not vectorised."""
    for i in range(out.size):
        out[i] = left[i] + right[i]


@jit(types.void(_float32_out, _float32_in))
def accumulate(into: Any, other: Any) -> None:
    """Compute `into += other`, [n] float32 each."""
    for i in range(into.size):
        into[i] += other[i]


@jit(types.void(_float32_in, types.float32, _float32_out))
def scale(values: Any, factor: Any, out: Any) -> None:
    """Compute `out = values * factor`, [n] float32 each. `out` must not be `values`."""
    for i in range(out.size):
        out[i] = values[i] * factor


@jit(types.void(_float32_in, _bits16_out))
def narrow_bf16(values: Any, out: Any) -> None:
    """Round `values`, [n] float32, to bfloat16 bits in `out`, [n] uint16: to nearest, ties to even.

    The addend is just below half of the lowest kept bit, plus that bit itself. NaNs become 0x7fc0.
    """
    for i in range(out.size):
        bits = _bits(values[i])
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        out[i] = np.uint32(0x7FC0) if bits & np.uint32(0x7FFF_FFFF) > np.uint32(0x7F80_0000) else rounded


@jit(types.void(_float32_in, _bits16_out))
def narrow_fp16(values: Any, out: Any) -> None:
    """Round `values`, [n] float32, to IEEE 754 binary16 bits in `out`, [n] uint16: to nearest, ties to even.

    Values that become subnormal are rounded by a float32 addition. NaNs become 0x7e00 with the sign of the value.
    """
    for i in range(out.size):
        bits = _bits(values[i])
        sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
        size = bits & np.uint32(0x7FFF_FFFF)
        # Exponents are rebased from 127 to 15. 0xFFF is just below half of the lowest kept bit.
        normal = (
            size - np.uint32(112 << 23) + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
        ) >> np.uint32(13)
        # The lowest bit of 0.5 equals the smallest subnormal, so the sum's lowest bits count subnormals.
        subnormal = _bits(_float(size) + np.float32(0.5)) - np.uint32(126 << 23)
        kept = normal if size >= np.uint32(113 << 23) else subnormal
        kept = np.uint32(0x7C00) if size >= np.uint32(143 << 23) else kept
        out[i] = np.uint32(0x7E00) if size > np.uint32(0x7F80_0000) else kept | sign


@jit(types.float32(types.uint16))
def _widened_bf16(stored: Any) -> Any:
    return _float(np.uint32(stored) << np.uint32(16))


@jit(types.float32(types.uint16))
def _widened_fp16(stored: Any) -> Any:
    sign = (np.uint32(stored) & np.uint32(0x8000)) << np.uint32(16)
    size = (np.uint32(stored) & np.uint32(0x7FFF)) << np.uint32(13)
    normal = size + np.uint32(112 << 23)
    # With exponent 0 the bits count subnormals: set them behind the leading one of 2**-14, then subtract 2**-14.
    subnormal = _bits(_float(size + np.uint32(113 << 23)) - _float(np.uint32(113 << 23)))
    bits = normal if size >= np.uint32(1 << 23) else subnormal
    bits = size | np.uint32(0x7F80_0000) if size >= np.uint32(31 << 23) else bits
    quiet = bits | np.uint32(0x0040_0000)
    return _float((quiet if bits > np.uint32(0x7F80_0000) else bits) | sign)


@jit(types.void(_bits16_in, _float32_out))
def widen_bf16(stored: Any, out: Any) -> None:
    """Write bfloat16 bits, [n] uint16, as [n] float32 to `out`. The conversion is exact."""
    for i in range(out.size):
        out[i] = _widened_bf16(stored[i])


@jit(types.void(_bits16_in, _float32_out))
def widen_fp16(stored: Any, out: Any) -> None:
    """Write binary16 bits, [n] uint16, as [n] float32 to `out`. The conversion is exact; NaNs become quiet."""
    for i in range(out.size):
        out[i] = _widened_fp16(stored[i])


@jit(types.void(_float32_out, _bits16_in))
def accumulate_bf16(into: Any, stored: Any) -> None:
    """Add bfloat16 bits, [n] uint16, to `into`, [n] float32, in place."""
    for i in range(into.size):
        into[i] += _widened_bf16(stored[i])


@jit(types.void(_float32_out, _bits16_in))
def accumulate_fp16(into: Any, stored: Any) -> None:
    """Add binary16 bits, [n] uint16, to `into`, [n] float32, in place."""
    for i in range(into.size):
        into[i] += _widened_fp16(stored[i])


@jit(types.void(_float32_in, _float64_out, _float64_out))
def norm_squared_blocks(values: Any, squares: Any, sums: Any) -> None:
    """Compute the block sums of `arithmetic.norm_squared_blocks`, with two levels of its tree per pass.

    Args:
        values: [n] float32.
        squares: [65536] float64, scratch memory.
        sums: [ceil(n / 65536)] float64, the result.
    """
    elements = squares.size
    quarter = elements // 4
    for block in range(sums.size):
        part = values[block * elements : min((block + 1) * elements, values.size)]
        if part.size == elements:
            low, high = part[:quarter], part[2 * quarter : 3 * quarter]
            low_next, high_next = part[quarter : 2 * quarter], part[3 * quarter :]
            for i in range(quarter):
                a, b = np.float64(low[i]), np.float64(high[i])
                c, d = np.float64(low_next[i]), np.float64(high_next[i])
                squares[i] = (a * a + b * b) + (c * c + d * d)
            size = quarter
        else:
            for i in range(part.size):
                squares[i] = np.float64(part[i]) * np.float64(part[i])
            squares[part.size :] = 0.0
            size = elements
        while size > 1:
            fourth = size // 4
            into, low_next = squares[:fourth], squares[fourth : 2 * fourth]
            high, high_next = squares[2 * fourth : 3 * fourth], squares[3 * fourth : size]
            for i in range(fourth):
                into[i] = (into[i] + high[i]) + (low_next[i] + high_next[i])
            size = fourth
        sums[block] = squares[0]
