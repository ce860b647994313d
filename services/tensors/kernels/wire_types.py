"""Element types on the wire.

fp32 and fp16 are IEEE 754 binary32 and binary16; bf16 is bfloat16, the upper half of a binary32. To 16 bits, values are
rounded to nearest, ties to even. Values that are too large become infinite. Every NaN becomes the same NaN (0x7fc0 in
bf16, 0x7e00 in fp16), because the bits would otherwise depend on the CPU. The conversion from 16 bits is exact; NaNs
of fp16 become quiet.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

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
