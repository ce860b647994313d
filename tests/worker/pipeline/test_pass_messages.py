"""Messages between stages are those of stock protobuf, and arrays keep their bits in a type that holds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.exact_transfer import ExactArray
from protos.pipeline_pb2 import ACTIVATION, TIED_PART, ArrayHeader, LanePosition, LinkState, PassMessage
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, DType, SharedPlaces
from services.pipeline.split import Split
from training.pipeline.exchange import ArraySizes
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.messages import (
    ArrayPiece,
    PassRefused,
    PieceReference,
    decode,
    encode_piece,
    encode_reference,
    encode_state,
)

HEADER = ArrayHeader(
    job="j", lease=1 << 63, range=3, micro_batch=65535, kind=TIED_PART, shape=[1, 7], number=9
)
STATE = LinkState(job="j", row=7, name="w", lanes=[LanePosition(kind=ACTIVATION, arrived=2, taken=1)])
FLOATS = np.dtype(np.float32)
BITS = np.dtype(np.uint16)


def encoded(content: bytes, header: ArrayHeader = HEADER) -> bytes:
    copy = ArrayHeader()
    copy.CopyFrom(header)
    return b"".join(encode_piece(copy, memoryview(content)))


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_a_piece_is_read_by_protobuf_and_back(content: bytes, stock: bool) -> None:
    message = encoded(content)
    parsed = PassMessage.FromString(message)
    assert parsed.payload == content and parsed.SerializeToString() == message
    found = decode(parsed.SerializeToString() if stock else memoryview(message))
    assert isinstance(found, ArrayPiece) and bytes(found.payload) == content
    assert (found.header.micro_batch, found.header.HasField("own_crc32c")) == (65535, False)


def test_states_and_references_are_read_back() -> None:
    assert decode(encode_state(STATE)) == STATE
    places = SharedPlaces(identity=1, descriptor=2, indices=[3])
    found = decode(encode_reference(HEADER, places))
    assert isinstance(found, PieceReference) and (found.header, found.places) == (HEADER, places)


@given(st.data())
def test_each_changed_byte_is_found(data: st.DataObject) -> None:
    places = SharedPlaces(identity=1, descriptor=2, indices=[3])
    message = data.draw(
        st.sampled_from([encoded(b"payload"), encode_state(STATE), encode_reference(HEADER, places)])
    )
    place = data.draw(st.integers(0, len(message) - 1))
    flipped = message[place] ^ (1 << data.draw(st.integers(0, 7)))
    with pytest.raises(PassRefused):
        decode(message[:place] + bytes([flipped]) + message[place + 1 :])


@pytest.mark.parametrize(
    ("own", "wire"),
    [(FLOATS, FLOAT32), (BITS, BFLOAT16), (BITS, FLOAT32), (FLOATS, BFLOAT16), (FLOATS, FLOAT16)],
)
def test_arrays_keep_the_bits_that_the_wire_type_holds(own: np.dtype[np.float32], wire: DType) -> None:
    plan = ArrayPlan(Split((1, 1)), "1f1b", ArraySizes(own, 24, 0), wire)
    # Halves are exact in every type. NaNs keep their bits only where nothing can be rounded.
    values = np.linspace(-6, 5.5, 24, dtype=np.float32).reshape(1, 4, 6)
    array: ExactArray = values
    if own == BITS:
        array = (values.view(np.uint32) >> 16).astype(np.uint16)
        array[0, 0, :2] = 0x7F81, 0xFF80  # a NaN with a payload, and minus infinity
    packed = plan.pack(array)
    assert packed.nbytes == array.size * plan.element_bytes
    found = plan.unpack(np.frombuffer(packed, np.uint8), array.shape)
    assert (found.dtype, found.shape) == (own, array.shape)
    assert found.tobytes() == array.tobytes()
