"""Chunks survive the wire bit for bit, agree with protobuf's own encoding, and damage is refused."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.tensors_pb2 import BFLOAT16, FLOAT32, GRADIENT, Chunk, ChunkHeader
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.wire import ChunkRefused, TensorChunk, check, deserialize, pack, serialize

LAYOUT_ELEMENTS = CHUNK_ELEMENTS + 100  # chunk 0 is full, chunk 1 holds 100 elements

headers = st.builds(
    ChunkHeader,
    job=st.text(max_size=200),
    epoch=st.integers(0, 2**64 - 1),
    generation=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**64 - 1),
    lease=st.integers(0, 2**64 - 1),
    incarnation=st.text(max_size=40),
    kind=st.integers(0, 3),
    index=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**64 - 1),
    elements=st.integers(0, 2**32 - 1),
    dtype=st.integers(0, 3),
    crc32c=st.integers(0, 2**32 - 1),
    losses=st.lists(st.floats(allow_nan=False), max_size=40),
)
payloads = st.binary(max_size=2000)


def small_chunk() -> TensorChunk:
    identity = ChunkHeader(
        job="job", epoch=3, generation=1, step=7, lease=5, kind=GRADIENT, dtype=FLOAT32, losses=[1.5]
    )
    return pack(identity, 1, np.linspace(-1, 1, 100, dtype=np.float32))


@given(headers, payloads)
def test_a_chunk_comes_back_as_it_was(header: ChunkHeader, payload: bytes) -> None:
    received = deserialize(serialize(TensorChunk(header, payload)))
    assert received.header == header
    assert bytes(received.payload) == payload


@given(headers, payloads)
def test_protobuf_reads_what_is_written_here_and_the_reverse(header: ChunkHeader, payload: bytes) -> None:
    stock = Chunk(header=header, payload=payload)
    assert Chunk.FromString(serialize(TensorChunk(header, payload))) == stock
    received = deserialize(stock.SerializeToString())
    assert (received.header, bytes(received.payload)) == (header, payload)


@given(headers, payloads, payloads)
def test_any_valid_encoding_is_read_as_protobuf_reads_it(
    header: ChunkHeader, payload: bytes, other: bytes
) -> None:
    with_header = Chunk(header=header).SerializeToString()
    with_payload = Chunk(payload=payload).SerializeToString()
    with_other = Chunk(payload=other).SerializeToString()
    unknown = b"\x82\x01\x03abc"  # field 16, of a later version
    for message in (
        with_payload + with_header,
        with_header + with_other + with_payload,
        with_header + with_header + with_payload,
        with_header + unknown + with_payload,
        with_header + with_payload + unknown,
        with_payload,
        with_header,
        b"",
    ):
        stock, received = Chunk.FromString(message), deserialize(message)
        assert received.header == stock.header
        assert bytes(received.payload) == stock.payload


@given(st.binary(max_size=300))
def test_garbage_is_refused_exactly_where_protobuf_refuses_it(message: bytes) -> None:
    try:
        stock = Chunk.FromString(message)
    except DecodeError:
        with pytest.raises(ValueError, match="is not a Chunk"):
            deserialize(message)
        return
    received = deserialize(message)
    assert (received.header, bytes(received.payload)) == (stock.header, stock.payload)


@given(st.integers(0, 10_000))
def test_every_truncated_message_is_refused(cut: int) -> None:
    message = serialize(small_chunk())
    cut %= len(message)
    try:
        chunk = deserialize(message[:cut])
    except ValueError:
        return
    with pytest.raises(ChunkRefused):
        check(chunk, LAYOUT_ELEMENTS, FLOAT32)


def test_no_flipped_bit_passes_unseen() -> None:
    original = small_chunk()
    message = serialize(original)
    payload_start = len(message) - 400
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            chunk = deserialize(bytes(damaged))
            check(chunk, LAYOUT_ELEMENTS, FLOAT32)
        except (ValueError, ChunkRefused):
            continue
        # What is left is damage to the header's identity, which whoever compares it with its own state sees.
        assert bit // 8 < payload_start
        assert chunk.header != original.header


def test_a_received_payload_is_a_view_of_the_message() -> None:
    message = serialize(small_chunk())
    received = deserialize(message)
    assert isinstance(received.payload, memoryview)
    assert received.payload.obj is message
    assert not received.values().flags.writeable


def test_packed_values_arrive_bit_for_bit_and_pass_the_check() -> None:
    rng = np.random.Generator(np.random.Philox(0))
    values = rng.integers(0, 2**32, CHUNK_ELEMENTS, dtype=np.uint32).view(np.float32)  # any bits, NaNs too
    received = deserialize(serialize(pack(ChunkHeader(job="job", dtype=FLOAT32), 0, values)))
    check(received, LAYOUT_ELEMENTS, FLOAT32)
    assert received.values().dtype == np.float32
    assert received.values().tobytes() == values.tobytes()


def test_pack_fills_in_what_describes_the_payload_and_keeps_the_rest() -> None:
    chunk = small_chunk()
    assert chunk.header == ChunkHeader(
        job="job",
        epoch=3,
        generation=1,
        step=7,
        lease=5,
        kind=GRADIENT,
        losses=[1.5],
        index=1,
        offset=CHUNK_ELEMENTS,
        elements=100,
        dtype=FLOAT32,
        crc32c=google_crc32c.value(bytes(chunk.payload)),
    )


def test_pack_takes_a_strided_view() -> None:
    values = np.arange(200, dtype=np.float32)[::2]
    chunk = pack(ChunkHeader(dtype=FLOAT32), 1, values)
    check(chunk, LAYOUT_ELEMENTS, FLOAT32)
    assert chunk.values().tolist() == values.tolist()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("index", 2, "chunk 2: no such index, the layout has 2 chunks"),
        ("offset", 0, f"chunk 1: offset 0, expected {CHUNK_ELEMENTS}"),
        ("elements", 99, "chunk 1: 99 elements, expected 100"),
        ("dtype", BFLOAT16, "chunk 1: dtype BFLOAT16, expected FLOAT32"),
        ("dtype", 9, "chunk 1: dtype 9, expected FLOAT32"),
        ("crc32c", 1, "chunk 1: crc32c 0x"),
    ],
)
def test_the_refusal_names_field_value_and_expectation(field: str, value: int, text: str) -> None:
    chunk = small_chunk()
    setattr(chunk.header, field, value)
    with pytest.raises(ChunkRefused, match=text):
        check(chunk, LAYOUT_ELEMENTS, FLOAT32)


def test_a_payload_of_another_length_is_refused() -> None:
    chunk = small_chunk()
    with pytest.raises(ChunkRefused, match="chunk 1: payload of 396 bytes, expected 400"):
        check(TensorChunk(chunk.header, chunk.payload[:-4]), LAYOUT_ELEMENTS, FLOAT32)


@settings(max_examples=20)
@given(st.integers(1, 2**21))
def test_lengths_of_every_size_are_written_as_protobuf_writes_them(size: int) -> None:
    header, payload = ChunkHeader(index=1), bytes(size)
    message = serialize(TensorChunk(header, payload))
    assert message == Chunk(header=header, payload=payload).SerializeToString()
