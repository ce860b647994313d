"""Element types on the wire, and the numpy path of converting float32 to and from them.

fp32 and fp16 are IEEE 754 binary32 and binary16; bf16 is bfloat16, the upper half of a binary32. To 16 bits, values are
rounded to nearest, ties to even. Values that are too large become infinite. Every NaN becomes the same NaN (0x7fc0 in
bf16, 0x7e00 in fp16), because the bits would otherwise depend on the CPU. The conversion from 16 bits is exact; NaNs
of fp16 become quiet.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

WireDType: TypeAlias = Literal["fp32", "bf16", "fp16"]
Payload: TypeAlias = "bytes | memoryview | NDArray[Any]"

STORED: dict[WireDType, np.dtype[Any]] = {
    "fp32": np.dtype("<f4"),
    "bf16": np.dtype("<u2"),
    "fp16": np.dtype("<u2"),
}
"""Numpy dtype of a payload's elements: float32, or the bits of 16-bit floats; little-endian."""

_BLOCK_ELEMENTS = 32 * 1024
"""Number of elements converted at a time, so that a block stays in the cache between passes."""


def narrow(values: NDArray[np.float32], out: NDArray[np.uint16], dtype: WireDType) -> None:
    """Write `values`, [n] float32, as bits of 16-bit floats to `out`, [n] uint16: to nearest, ties to even."""
    if dtype == "bf16":
        target, infinite, nan = np.dtype(ml_dtypes.bfloat16), 0x7F80, 0x7FC0
    else:
        target, infinite, nan = np.dtype(np.float16), 0x7C00, 0x7E00
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, values.size, _BLOCK_ELEMENTS):
            part = out[start : start + _BLOCK_ELEMENTS]
            np.copyto(part.view(target), values[start : start + _BLOCK_ELEMENTS], casting="unsafe")
            nans = (part & 0x7FFF) > infinite
            if nans.any():
                part[nans] = nan


def widen(stored: NDArray[np.uint16], out: NDArray[np.float32], dtype: WireDType) -> None:
    """Write bits of 16-bit floats, [n] uint16, as [n] float32 to `out`. The conversion is exact."""
    if dtype == "fp16":
        # All indices are in range, so "clip" changes nothing; "raise" would use a buffer.
        np.take(_widened_fp16(), stored, out=out, mode="clip")
        return
    bits = out.view(np.uint32)
    for start in range(0, out.size, _BLOCK_ELEMENTS):
        part = bits[start : start + _BLOCK_ELEMENTS]
        np.copyto(part, stored[start : start + _BLOCK_ELEMENTS])
        np.left_shift(part, 16, out=part)


def accumulate_narrow(into: NDArray[np.float32], stored: NDArray[np.uint16], dtype: WireDType) -> None:
    """Add bits of 16-bit floats, [n] uint16, to `into`, [n] float32, in place. Each sum is rounded once."""
    widened = np.empty(min(_BLOCK_ELEMENTS, into.size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, into.size, _BLOCK_ELEMENTS):
            part = into[start : start + _BLOCK_ELEMENTS]
            widen(stored[start : start + _BLOCK_ELEMENTS], widened[: part.size], dtype)
            np.add(part, widened[: part.size], out=part)


@cache
def _widened_fp16() -> NDArray[np.float32]:
    """Return the float32 of each of the 65,536 bit patterns of float16, [65536] float32."""
    widened = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    nans = np.isnan(widened)
    widened.view(np.uint32)[nans] |= 0x0040_0000  # quiet NaNs, which not every CPU makes
    return widened
