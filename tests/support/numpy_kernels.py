"""What the C kernels of native/ compute, in numpy: the specification that tests compare them with, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array, Float64Array
from services.tensors.kernels.wire_types import STORED, Payload, WireDType


def add(left: Float32Array, right: Float32Array) -> Float32Array:
    """Return `left + right`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return left + right


def scale(values: Float32Array, factor: float) -> Float32Array:
    """Return `values * float32(factor)`."""
    with np.errstate(all="ignore"):
        return values * np.float32(factor)


def norm_squared_blocks(values: Float32Array) -> Float64Array:
    """Return the sum of squares of each block of 64 Ki elements, its upper half added to its lower one repeatedly."""
    padded = np.zeros(-(-values.size // BLOCK_ELEMENTS) * BLOCK_ELEMENTS, np.float64)
    padded[: values.size] = values
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (padded * padded).reshape(-1, BLOCK_ELEMENTS)
        while squares.shape[1] > 1:
            half = squares.shape[1] // 2
            squares = squares[:, :half] + squares[:, half:]
    return squares[:, 0]


def to_wire(values: Float32Array, dtype: WireDType) -> NDArray[Any]:
    """Return values in a wire type: rounded to nearest, ties to even, with one NaN for all."""
    if dtype == "fp32":
        return values
    kind, infinite, nan = (
        (ml_dtypes.bfloat16, 0x7F80, 0x7FC0) if dtype == "bf16" else (np.float16, 0x7C00, 0x7E00)
    )
    with np.errstate(all="ignore"):
        bits = values.astype(kind).view(np.uint16)
    bits[bits & 0x7FFF > infinite] = nan
    return bits


def from_wire(payload: Payload, dtype: WireDType) -> Float32Array:
    """Return the elements of a payload as float32, exactly; NaNs of fp16 become quiet."""
    stored = np.frombuffer(payload, STORED[dtype])
    if dtype == "fp32":
        return stored
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    widened = stored.view(np.float16).astype(np.float32)
    widened.view(np.uint32)[np.isnan(widened)] |= 0x0040_0000  # which not every CPU does
    return widened
