"""Rounding of float32 values to what bfloat16 can represent, to nearest even, bit for bit as the device's host cast."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.emulator.parallel import over_rows

_QUIET_NAN = np.uint32(0x00400000)


def round_to_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round `values` (float32, C-contiguous, any shape) in place and return it; NaN stays NaN, infinities stay."""
    flat = values.reshape(-1).view(np.uint32)

    def compute(at: slice) -> None:
        block = flat[at]
        not_a_number = np.isnan(block.view(np.float32))
        if not_a_number.any():
            block[not_a_number] = (block[not_a_number] | _QUIET_NAN) & np.uint32(0xFFFF0000)
        odd = np.right_shift(block, 16)
        np.bitwise_and(odd, 1, out=odd)
        np.add(odd, np.uint32(0x7FFF), out=odd)
        # A NaN's low half is zero by now, so that the carry can't reach its upper half.
        np.add(block, odd, out=block)
        np.bitwise_and(block, np.uint32(0xFFFF0000), out=block)

    over_rows(compute, flat.size, 1)
    return values


def is_bfloat16(values: npt.NDArray[Any]) -> bool:
    """Whether every float32 of `values` is one that bfloat16 can represent."""
    return not bool((np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF)).any())
