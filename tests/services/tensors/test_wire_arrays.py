"""Arrays keep their bits in a wire type that holds them."""

from __future__ import annotations

import numpy as np
import pytest

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, DType
from services.tensors.wire_arrays import WireArray, WireArrays, wire_type_of

FLOATS = np.dtype(np.float32)
BITS = np.dtype(np.uint16)


@pytest.mark.parametrize(
    ("own", "wire"),
    [(FLOATS, FLOAT32), (BITS, BFLOAT16), (BITS, FLOAT32), (FLOATS, BFLOAT16), (FLOATS, FLOAT16)],
)
def test_arrays_keep_the_bits_that_the_wire_type_holds(own: np.dtype[np.float32], wire: DType) -> None:
    arrays = WireArrays(own, wire)
    # Halves are exact in every type. NaNs keep their bits only where nothing can be rounded.
    values = np.linspace(-6, 5.5, 24, dtype=np.float32).reshape(1, 4, 6)
    array: WireArray = values
    if own == BITS:
        array = (values.view(np.uint32) >> 16).astype(np.uint16)
        array[0, 0, :2] = 0x7F81, 0xFF80  # a NaN with a payload, and minus infinity
    packed = arrays.pack(array)
    assert packed.nbytes == array.size * arrays.element_bytes
    found = arrays.unpack(np.frombuffer(packed, np.uint8), array.shape)
    assert (found.dtype, found.shape) == (own, array.shape)
    assert found.tobytes() == array.tobytes()


def test_a_message_with_another_wire_type_is_told_apart() -> None:
    assert wire_type_of(BITS) == BFLOAT16
    arrays = WireArrays(FLOATS, FLOAT32)
    assert not arrays.describe_mismatch(FLOAT32)
    assert arrays.describe_mismatch(FLOAT16) == "dtype FLOAT16, expected FLOAT32 in this job"
    assert arrays.describe_mismatch(99) == "dtype 99, expected FLOAT32 in this job"
