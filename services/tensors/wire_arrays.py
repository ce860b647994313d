"""Arrays of one dtype on the wire in another: float32 values, or bfloat16 bits as uint16, in any wire type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, DType
from services.tensors.kernels.arithmetic import Float32Array, from_wire, to_wire
from services.tensors.kernels.wire_types import STORED, WireDType

WireArray: TypeAlias = NDArray[np.float32] | NDArray[np.uint16]
"""Float32 values, or the bits of bfloat16 values as uint16."""

_NAMES: dict[DType, WireDType] = {FLOAT32: "fp32", BFLOAT16: "bf16", FLOAT16: "fp16"}
_TYPES = {np.dtype(np.float32): FLOAT32, np.dtype(np.uint16): BFLOAT16}


def wire_type_of(dtype: np.dtype[Any]) -> DType:
    """Return the wire type that loses nothing of arrays of a dtype: float32, or uint16 for bfloat16 bits."""
    return _TYPES[dtype]


@dataclass(frozen=True)
class WireArrays:
    """How arrays of one dtype travel.

    Attributes:
        dtype: dtype of the arrays at both ends: float32, or uint16 for bfloat16 bits.
        wire: type in which they travel.
    """

    dtype: np.dtype[Any]
    wire: DType

    @property
    def element_bytes(self) -> int:
        """Size of an element on the wire."""
        return STORED[_NAMES[self.wire]].itemsize

    def describe_mismatch(self, wire: int) -> str:
        """Return how a wire type that a message names differs from that of the arrays; empty if it does not."""
        if wire == self.wire:
            return ""
        name = next((name for name, value in DType.items() if value == wire), str(wire))
        return f"dtype {name}, expected {DType.Name(self.wire)} in this job"

    def pack(self, array: WireArray) -> memoryview:
        """Return an array's bytes on the wire, in C order; a view of the array if its type is that of the wire."""
        if _TYPES[array.dtype] == self.wire:
            packed: NDArray[Any] = np.ascontiguousarray(array)
        else:
            packed = to_wire(_widen(array).reshape(-1), _NAMES[self.wire])
        return packed.reshape(-1).view(np.uint8).data

    def unpack(self, content: NDArray[np.uint8], shape: tuple[int, ...]) -> WireArray:
        """Return the array of a shape whose bytes have arrived."""
        own = _TYPES[self.dtype]
        if own == self.wire:
            return content.view(self.dtype).reshape(shape)
        values = from_wire(content, _NAMES[self.wire])
        if own == FLOAT32:
            return values.reshape(shape)
        if self.wire == FLOAT32:  # nothing to round: NaNs keep their bits, too
            return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
        return to_wire(values, _NAMES[own]).reshape(shape)


def _widen(array: WireArray) -> Float32Array:
    """Return an array in float32, without rounding."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return from_wire(flat.view(np.uint8).data, _NAMES[_TYPES[array.dtype]])
