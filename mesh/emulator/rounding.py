"""Rounding of float32 values to bfloat16, to nearest even, bit for bit like ttnn's cast on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.emulator.parallel import run_over_rows

_QUIET_NAN = np.uint32(0x00400000)


def round_to_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round C-contiguous float32 values of any shape in place and return them. NaN and infinities are kept."""
    flat = values.reshape(-1).view(np.uint32)

    def compute(at: slice) -> None:
        block = flat[at]
        not_a_number = np.isnan(block.view(np.float32))
        if not_a_number.any():
            block[not_a_number] = (block[not_a_number] | _QUIET_NAN) & np.uint32(0xFFFF0000)
        odd = np.right_shift(block, 16)
        np.bitwise_and(odd, 1, out=odd)
        np.add(odd, np.uint32(0x7FFF), out=odd)
        # The low half of a NaN is zero here, so no carry reaches its high half.
        np.add(block, odd, out=block)
        np.bitwise_and(block, np.uint32(0xFFFF0000), out=block)

    run_over_rows(compute, flat.size, 1)
    return values


def is_bfloat16(values: npt.NDArray[Any]) -> bool:
    """Return whether bfloat16 can represent every float32 in `values`."""
    return not bool((np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF)).any())
