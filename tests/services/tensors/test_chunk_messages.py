"""Tests of chunk messages: same bits after the wire, same encoding as protobuf's, damage refused."""

from __future__ import annotations

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from protos.tensors_pb2 import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    GRADIENT,
    Chunk,
    ChunkHeader,
    DType,
    Findings,
    NonFinite,
)
from services.tensors.chunk_messages import (
    ChunkRefused,
    TensorChunk,
    check_chunk,
    cut_piece,
    describe_float16_overflow,
    deserialize_chunk,
    join_pieces,
    pack_chunk,
    serialize_chunk,
)
from services.tensors.layout import CHUNK_ELEMENTS

LAYOUT_ELEMENTS = CHUNK_ELEMENTS + 100  # chunk 0 is full, chunk 1 has 100 elements

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
    findings=st.builds(
        Findings,
        losses=st.lists(st.floats(allow_nan=False), max_size=40),
        non_finite=st.lists(
            st.builds(NonFinite, micro_batch=st.integers(0, 9), parameter=st.text(max_size=9))
        ),
        count=st.integers(0, 2**64 - 1),
    ),
)
payloads = st.binary(max_size=2000)


def small_chunk() -> TensorChunk:
    identity = ChunkHeader(
        job="job",
        epoch=3,
        generation=1,
        step=7,
        lease=5,
        kind=GRADIENT,
        dtype=FLOAT32,
        findings=Findings(losses=[1.5]),
    )
    return pack_chunk(identity, 1, np.linspace(-1, 1, 100, dtype=np.float32))


def add_checksum(header: ChunkHeader) -> ChunkHeader:
    """Return a copy of the header with its checksum, made by protobuf alone."""
    whole = ChunkHeader()
    whole.CopyFrom(header)
    whole.own_crc32c = google_crc32c.value(header.SerializeToString())
    return whole


@given(headers, payloads)
def test_chunk_survives_the_round_trip(header: ChunkHeader, payload: bytes) -> None:
    received = deserialize_chunk(serialize_chunk(TensorChunk(header, payload)))
    assert received.header == header
    assert bytes(received.payload) == payload


@given(headers, payloads)
def test_protobuf_reads_our_encoding_and_we_read_protobufs(header: ChunkHeader, payload: bytes) -> None:
    with_checksum = Chunk(header=add_checksum(header), payload=payload)
    assert Chunk.FromString(serialize_chunk(TensorChunk(header, payload))) == with_checksum
    for stock in (with_checksum, Chunk(header=header, payload=payload)):
        received = deserialize_chunk(stock.SerializeToString())
        assert (received.header, bytes(received.payload)) == (header, payload)


@given(headers, payloads, payloads)
def test_every_valid_encoding_is_read_as_protobuf_reads_it(
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
        stock, received = Chunk.FromString(message), deserialize_chunk(message)
        assert received.header == stock.header
        assert bytes(received.payload) == stock.payload


@given(st.binary(max_size=300))
def test_garbage_is_refused_exactly_if_protobuf_refuses_it(message: bytes) -> None:
    try:
        stock = Chunk.FromString(message)
    except DecodeError:
        with pytest.raises(ValueError, match="is not a Chunk"):
            deserialize_chunk(message)
        return
    received = deserialize_chunk(message)
    assert (received.header, bytes(received.payload)) == (stock.header, stock.payload)


@given(st.integers(0, 10_000))
def test_truncated_message_is_refused(cut: int) -> None:
    message = serialize_chunk(small_chunk())
    cut %= len(message)
    try:
        chunk = deserialize_chunk(message[:cut])
    except ValueError:
        return
    with pytest.raises(ChunkRefused):
        check_chunk(chunk, LAYOUT_ELEMENTS, FLOAT32)


def test_no_flipped_bit_goes_unnoticed() -> None:
    original = small_chunk()
    original.header.findings.losses.extend(range(12))  # so that lengths have many bits set
    message = serialize_chunk(original)
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            chunk = deserialize_chunk(bytes(damaged))
            check_chunk(chunk, LAYOUT_ELEMENTS, FLOAT32)
        except (ValueError, ChunkRefused):
            continue
        # Only a flip that turns the checksum into an unknown field passes. Then the header is still right.
        assert 0x7D in (message[bit // 8], damaged[bit // 8])
        chunk.header.DiscardUnknownFields()
        assert chunk.header == original.header


def test_received_payload_is_a_view_of_the_message() -> None:
    message = serialize_chunk(small_chunk())
    received = deserialize_chunk(message)
    assert isinstance(received.payload, memoryview)
    assert received.payload.obj is message
    assert not received.values().flags.writeable


def test_packed_values_arrive_with_the_same_bits() -> None:
    rng = np.random.Generator(np.random.Philox(0))
    values = rng.integers(0, 2**32, CHUNK_ELEMENTS, dtype=np.uint32).view(np.float32)  # any bits, NaNs too
    received = deserialize_chunk(
        serialize_chunk(pack_chunk(ChunkHeader(job="job", dtype=FLOAT32), 0, values))
    )
    check_chunk(received, LAYOUT_ELEMENTS, FLOAT32)
    assert received.values().dtype == np.float32
    assert received.values().tobytes() == values.tobytes()


def test_pack_sets_the_payload_fields_and_keeps_the_others() -> None:
    chunk = small_chunk()
    assert chunk.header == ChunkHeader(
        job="job",
        epoch=3,
        generation=1,
        step=7,
        lease=5,
        kind=GRADIENT,
        findings=Findings(losses=[1.5]),
        index=1,
        offset=CHUNK_ELEMENTS,
        elements=100,
        dtype=FLOAT32,
        crc32c=google_crc32c.value(bytes(chunk.payload)),
    )


def test_pack_takes_a_strided_view() -> None:
    values = np.arange(200, dtype=np.float32)[::2]
    chunk = pack_chunk(ChunkHeader(dtype=FLOAT32), 1, values)
    check_chunk(chunk, LAYOUT_ELEMENTS, FLOAT32)
    assert chunk.values().tolist() == values.tolist()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("index", 2, "chunk 2: .* 2 chunks"),
        ("offset", 0, f"chunk 1: offset 0.* {CHUNK_ELEMENTS}"),
        ("elements", 99, "chunk 1: 99 elements.* 100"),
        ("dtype", BFLOAT16, "chunk 1: dtype BFLOAT16.* FLOAT32"),
        ("dtype", 9, "chunk 1: dtype 9.* FLOAT32"),
        ("crc32c", 1, "chunk 1: crc32c 0x"),
    ],
)
def test_refusal_names_field_value_and_expectation(field: str, value: int, text: str) -> None:
    chunk = small_chunk()
    setattr(chunk.header, field, value)
    with pytest.raises(ChunkRefused, match=text):
        check_chunk(chunk, LAYOUT_ELEMENTS, FLOAT32)


@pytest.mark.parametrize("last", [True, False])
def test_damaged_header_is_refused_before_and_after_the_payload(last: bool) -> None:
    chunk = small_chunk()
    header = add_checksum(chunk.header)
    header.lease = 6
    parts = [
        Chunk(header=header).SerializeToString(),
        Chunk(payload=bytes(chunk.payload)).SerializeToString(),
    ]
    text = r"chunk 1: header .*crc32c 0x.*\(GRADIENT of job 'job', generation 1, step 7, lease 6\)"
    with pytest.raises(ChunkRefused, match=text):
        deserialize_chunk(b"".join(parts if last else reversed(parts)))


def test_payload_of_wrong_length_is_refused() -> None:
    chunk = small_chunk()
    with pytest.raises(ChunkRefused, match=r"chunk 1: .* 396 bytes.* 400"):
        check_chunk(TensorChunk(chunk.header, chunk.payload[:-4]), LAYOUT_ELEMENTS, FLOAT32)


@settings(max_examples=20)
@given(st.integers(1, 2**21))
def test_payload_of_any_length_is_written_as_protobuf_writes_it(size: int) -> None:
    header, payload = ChunkHeader(index=1), bytes(size)
    message = serialize_chunk(TensorChunk(header, payload))
    assert message == Chunk(header=add_checksum(header), payload=payload).SerializeToString()


# ---- wire types ----

TYPES = {FLOAT32: np.dtype("<f4"), BFLOAT16: np.dtype(ml_dtypes.bfloat16), FLOAT16: np.dtype("<f2")}


def chunk_of(dtype: DType) -> TensorChunk:
    identity = ChunkHeader(job="job", epoch=3, generation=1, step=7, lease=5, kind=GRADIENT, dtype=dtype)
    return pack_chunk(identity, 1, np.linspace(-1, 1, 100, dtype=np.float32))


@pytest.mark.parametrize("dtype", TYPES)
@settings(deadline=None)  # the first call may compile the kernels
@given(arrays(np.float32, 100, elements=st.floats(width=32)))
def test_values_arrive_rounded_to_nearest_even(dtype: DType, values: NDArray[np.float32]) -> None:
    received = deserialize_chunk(serialize_chunk(pack_chunk(ChunkHeader(dtype=dtype), 1, values)))
    check_chunk(received, LAYOUT_ELEMENTS, dtype)
    assert len(received.payload) == 100 * TYPES[dtype].itemsize
    with np.errstate(over="ignore"):
        expected = values.astype(TYPES[dtype]).astype(np.float32)
    np.testing.assert_array_equal(received.values(), expected)  # treats NaNs as equal
    into = np.ones(100, np.float32)
    received.add_to(into)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(into, np.float32(1) + expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("expected", TYPES)
def test_only_the_wire_type_of_the_job_is_accepted(dtype: DType, expected: DType) -> None:
    chunk = chunk_of(dtype)
    if dtype == expected:
        check_chunk(chunk, LAYOUT_ELEMENTS, expected)
        return
    text = f"chunk 1: dtype {DType.Name(dtype)}.* {DType.Name(expected)}"
    with pytest.raises(ChunkRefused, match=text):
        check_chunk(chunk, LAYOUT_ELEMENTS, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_refusal_names_the_origin_on_one_line(dtype: DType) -> None:
    chunk = chunk_of(dtype)
    chunk.header.crc32c ^= 1
    with pytest.raises(ChunkRefused) as caught:
        check_chunk(chunk, LAYOUT_ELEMENTS, dtype)
    assert str(caught.value).endswith("(GRADIENT of job 'job', generation 1, step 7, lease 5)")
    chunk.header.job, chunk.header.kind = "two\nlines\x1b[1m" + "x" * 1000, 77  # type: ignore[assignment]
    with pytest.raises(ChunkRefused) as caught:
        check_chunk(chunk, LAYOUT_ELEMENTS, dtype)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_overflow_of_float16_is_described() -> None:
    values = np.array([65519.0, 65520.0, -1e6, np.inf, np.nan, 0.0], np.float32)
    texts = {
        dtype: describe_float16_overflow(
            pack_chunk(ChunkHeader(job="job", dtype=dtype, kind=GRADIENT), 1, values)
        )
        for dtype in TYPES
    }
    assert texts[FLOAT32] is texts[BFLOAT16] is None
    text = texts[FLOAT16] or ""
    assert all(fact in text for fact in ("chunk 1", "3 of 6 elements", "float16", "65504"))
    assert describe_float16_overflow(chunk_of(FLOAT16)) is None


# ---- any input ----


def check_refused_or_intact(message: bytes, dtype: DType, original: TensorChunk) -> None:
    """Check that a message is refused with one line, or has the payload of the original chunk."""
    try:
        received = deserialize_chunk(message)
        check_chunk(received, LAYOUT_ELEMENTS, dtype)
    except (ValueError, ChunkRefused) as refused:
        assert str(refused).isprintable() and str(refused)
        return
    assert bytes(received.payload) == bytes(original.payload)
    assert received.values().tobytes() == original.values().tobytes()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TYPES)), st.binary(max_size=600))
def test_arbitrary_bytes_are_refused_with_a_reason(dtype: DType, message: bytes) -> None:
    check_refused_or_intact(message, dtype, chunk_of(dtype))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(TYPES)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4),
)
def test_mutated_chunks_are_refused_with_a_reason(
    dtype: DType, splices: list[tuple[float, int, bytes]]
) -> None:
    """Replace up to 8 bytes anywhere in the message by up to 8 others, up to 4 times."""
    original = chunk_of(dtype)
    message = serialize_chunk(original)
    for where, cut, inserted in splices:
        at = int(where * len(message))
        message = message[:at] + inserted + message[at + cut :]
    check_refused_or_intact(message, dtype, original)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TYPES)), headers, st.binary(max_size=500))
def test_any_header_over_any_payload_is_refused_with_a_reason(
    dtype: DType, header: ChunkHeader, payload: bytes
) -> None:
    check_refused_or_intact(serialize_chunk(TensorChunk(header, payload)), dtype, chunk_of(dtype))


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_pieces_of_a_chunk_make_up_its_bits(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([FLOAT32, BFLOAT16, FLOAT16]))
    cuts = sorted(data.draw(st.sets(st.integers(1, 99), max_size=9)))
    whole = pack_chunk(
        ChunkHeader(job="job", kind=GRADIENT, dtype=dtype), 1, np.linspace(-1, 1, 100, dtype=np.float32)
    )
    pieces = [
        cut_piece(whole, CHUNK_ELEMENTS + start, stop - start)
        for start, stop in zip([0, *cuts], [*cuts, 100], strict=True)
    ]
    received = [deserialize_chunk(serialize_chunk(piece)) for piece in data.draw(st.permutations(pieces))]
    for piece in received:
        check_chunk(piece, LAYOUT_ELEMENTS, dtype, pieces=True)
    joined = join_pieces(received)
    assert bytes(joined.payload) == bytes(whole.payload)
    assert (joined.header.index, joined.header.offset, joined.header.elements) == (1, CHUNK_ELEMENTS, 100)


@pytest.mark.parametrize(
    ("offset", "elements"),
    [(CHUNK_ELEMENTS - 1, 5), (CHUNK_ELEMENTS + 96, 5), (CHUNK_ELEMENTS + 5, 0), (3, 5)],
)
def test_a_piece_outside_its_chunk_is_refused(offset: int, elements: int) -> None:
    header = ChunkHeader(job="j", index=1, offset=offset, elements=elements, dtype=FLOAT32)
    stop = offset + elements
    expected = (
        f"chunk 1: elements {offset} to {stop}, expected some from {CHUNK_ELEMENTS} to {LAYOUT_ELEMENTS}"
    )
    with pytest.raises(ChunkRefused, match=expected):
        check_chunk(TensorChunk(header, bytes(4 * elements)), LAYOUT_ELEMENTS, FLOAT32, pieces=True)


def test_a_piece_is_refused_where_whole_chunks_are_expected() -> None:
    whole = small_chunk()
    with pytest.raises(ChunkRefused, match=r"chunk 1: 60 elements, expected 100"):
        check_chunk(cut_piece(whole, CHUNK_ELEMENTS, 60), LAYOUT_ELEMENTS, FLOAT32)
    with pytest.raises(
        ChunkRefused, match=rf"chunk 1: offset {CHUNK_ELEMENTS + 40}, expected {CHUNK_ELEMENTS}"
    ):
        check_chunk(cut_piece(whole, CHUNK_ELEMENTS + 40, 60), LAYOUT_ELEMENTS, FLOAT32)


@pytest.mark.parametrize("second", [(39, 61), (41, 59)])
def test_pieces_that_do_not_meet_are_no_chunk(second: tuple[int, int]) -> None:
    whole = small_chunk()
    offset, elements = second
    pieces = [cut_piece(whole, CHUNK_ELEMENTS, 40), cut_piece(whole, CHUNK_ELEMENTS + offset, elements)]
    with pytest.raises(
        ValueError, match=f"begins at {CHUNK_ELEMENTS + offset}, expected {CHUNK_ELEMENTS + 40}"
    ):
        join_pieces(pieces)
