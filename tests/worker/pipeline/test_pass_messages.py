"""Messages between stages are those of stock protobuf, and damaged ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.pipeline_pb2 import ACTIVATION, TIED_PART, ArrayHeader, LanePosition, LinkState, PassMessage
from protos.tensors_pb2 import SharedPlaces
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
