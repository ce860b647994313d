"""The kernels of arithmetic.py, compiled: one pass over memory each. Import through `compiler.load`.

Arrays of these signatures may be read-only, as payloads are, and need not be aligned: a payload begins anywhere in its
message.
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


_bits: Any = intrinsic(_as_uint32)  # the bits of a float32, a uint32
_float: Any = intrinsic(_as_float32)  # the float32 of such bits


@jit(types.void(_float32_in, _float32_in, _float32_out))
def add(left: Any, right: Any, out: Any) -> None:
    """`out = left + right`; `out` is neither: the loop would be compiled for arrays that may overlap."""
    for i in range(out.size):
        out[i] = left[i] + right[i]


@jit(types.void(_float32_out, _float32_in))
def accumulate(into: Any, other: Any) -> None:
    """`into += other`."""
    for i in range(into.size):
        into[i] += other[i]


@jit(types.void(_float32_in, types.float32, _float32_out))
def scale(values: Any, factor: Any, out: Any) -> None:
    """`out = values * factor`; `out` is another array."""
    for i in range(out.size):
        out[i] = values[i] * factor


@jit(types.void(_float32_in, _bits16_out))
def narrow_bf16(values: Any, out: Any) -> None:
    """Round to nearest even by adding just below half of the lowest bit kept, and that bit itself."""
    for i in range(out.size):
        bits = _bits(values[i])
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        out[i] = np.uint32(0x7FC0) if bits & np.uint32(0x7FFF_FFFF) > np.uint32(0x7F80_0000) else rounded


@jit(types.void(_float32_in, _bits16_out))
def narrow_fp16(values: Any, out: Any) -> None:
    """Round to nearest even; a float32 addition rounds what becomes subnormal."""
    for i in range(out.size):
        bits = _bits(values[i])
        sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
        size = bits & np.uint32(0x7FFF_FFFF)
        # Exponents are rebased from 127 to 15; 0xFFF is just below half of the lowest bit kept.
        normal = (
            size - np.uint32(112 << 23) + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
        ) >> np.uint32(13)
        # 0.5's lowest bit is worth the smallest subnormal: after this addition it counts subnormals.
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
    # An exponent of 0 counts subnormals: put them behind the leading one of 2**-14 and take that away again.
    subnormal = _bits(_float(size + np.uint32(113 << 23)) - _float(np.uint32(113 << 23)))
    bits = normal if size >= np.uint32(1 << 23) else subnormal
    bits = size | np.uint32(0x7F80_0000) if size >= np.uint32(31 << 23) else bits
    quiet = bits | np.uint32(0x0040_0000)
    return _float((quiet if bits > np.uint32(0x7F80_0000) else bits) | sign)


@jit(types.void(_bits16_in, _float32_out))
def widen_bf16(stored: Any, out: Any) -> None:
    """`out = float32(stored)`."""
    for i in range(out.size):
        out[i] = _widened_bf16(stored[i])


@jit(types.void(_bits16_in, _float32_out))
def widen_fp16(stored: Any, out: Any) -> None:
    """`out = float32(stored)`."""
    for i in range(out.size):
        out[i] = _widened_fp16(stored[i])


@jit(types.void(_float32_out, _bits16_in))
def accumulate_bf16(into: Any, stored: Any) -> None:
    """`into += float32(stored)`."""
    for i in range(into.size):
        into[i] += _widened_bf16(stored[i])


@jit(types.void(_float32_out, _bits16_in))
def accumulate_fp16(into: Any, stored: Any) -> None:
    """`into += float32(stored)`."""
    for i in range(into.size):
        into[i] += _widened_fp16(stored[i])


@jit(types.void(_float32_in, _float64_out, _float64_out))
def norm_squared_blocks(values: Any, squares: Any, sums: Any) -> None:
    """Block sums by the tree of kernels.py, two of its levels at a time; `squares` is scratch of a block's size."""
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
