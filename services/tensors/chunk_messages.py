"""Chunks on the wire: protobuf's `Chunk` message, written and read without copying the payload.

The functions here replace the generated (de)serializers: see `payload_last.py`. Messages in any other valid encoding
are read by protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from native import crc32c
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, Chunk, ChunkHeader, ChunkKind, DType
from services.errors import Refusal, Refused
from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.checksums import ChecksumMismatch, encode_with_checksum, verify_checksum
from services.tensors.kernels.arithmetic import (
    Float32Array,
    accumulate_wire,
    copy_from_wire,
    from_wire,
    to_wire,
)
from services.tensors.kernels.wire_types import STORED, WireDType
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range
from services.tensors.payload_last import Message as Message
from services.tensors.payload_last import encode_before_payload, split_message
from services.tensors.shared_memory import MappedArray

_KERNEL_NAMES: dict[int, WireDType] = {FLOAT32: "fp32", BFLOAT16: "bf16", FLOAT16: "fp16"}
_MAX_FLOAT16 = 65504
_INFINITE_FLOAT16 = 0x7C00
_MAX_JOB_CHARACTERS = 60


class ChunkRefused(Refused):
    """Chunk that contradicts itself or the layout. The text names the field, its value and what was expected."""


class ChunkOverwritten(ChunkRefused):
    """Chunk in shared memory whose owner has overwritten its place, such as with weights of a later step."""

    def __init__(self, header: ChunkHeader) -> None:
        super().__init__(
            f"chunk {header.index}: its place in shared memory was overwritten{_describe_origin(header)}"
        )


@dataclass(frozen=True)
class TensorChunk:
    """One message of the data plane: a chunk's header and elements.

    Attributes:
        header: description of the payload: job, step, kind, index, element type.
        payload: the elements, little-endian. It is a view of the received message, of the array to be sent, or of
            shared memory.
        memory: shared memory that the payload is a view of, or None. Such a payload has no checksum, since no wire
            or buffer could damage it. The mark of its place shows whether it has been overwritten.
        sequence: sequence number that its place in the memory is marked with.
        place: index of the chunk whose place that is: of its own chunk, unless it is at a position of its own.
        checked: whether the header came with a checksum, which was right.
    """

    header: ChunkHeader
    payload: bytes | memoryview
    memory: MappedArray | None = None
    sequence: int = 0
    place: int = 0
    checked: bool = False

    @property
    def intact(self) -> bool:
        """Whether the payload is still what was sent: the owner of shared memory may overwrite it."""
        return self.memory is None or self.memory.is_marked(self.place, self.sequence)

    def values(self) -> Float32Array:
        """Return the elements, [elements] float32, of a chunk that passed `check_chunk`.

        For float32 this is a view of the payload, read-only if the payload was received. For other types it is a new
        array; converting takes long enough to belong on a kernel thread.
        """
        return from_wire(self.payload, _KERNEL_NAMES[self.header.dtype])

    def whole_layout(self) -> Float32Array | None:
        """Return all elements of the layout, [elements] float32, if the payload lies in such an array; else None."""
        memory = self.memory
        if memory is None or memory.stripe_count > 1 or self.header.dtype != FLOAT32:
            return None
        return memory.payload.view(np.float32)

    def copy_to(self, out: Float32Array) -> None:
        """Write the elements to `out`, [elements] float32. The chunk must have passed `check_chunk`."""
        copy_from_wire(self.payload, _KERNEL_NAMES[self.header.dtype], out)

    def add_to(self, into: Float32Array) -> None:
        """Add the elements to `into`, [elements] float32, in place. The chunk must have passed `check_chunk`."""
        accumulate_wire(into, self.payload, _KERNEL_NAMES[self.header.dtype])


def pack_chunk(
    identity: ChunkHeader, index: int, values: Float32Array, place: NDArray[np.uint8] | None = None
) -> TensorChunk:
    """Return a chunk of the layout.

    Args:
        identity: header to copy, with the dtype that values are rounded to. The fields that describe the payload
            (index, offset, elements, crc32c) are replaced.
        index: index of the chunk in the layout.
        values: [elements] float32; must not change until the chunk is sent.
        place: [payload bytes] uint8 of shared memory to write the payload to. Such a chunk has no checksum.
    """
    wire_values = to_wire(values, _KERNEL_NAMES[identity.dtype], place).view(np.uint8)
    header = ChunkHeader()
    header.CopyFrom(identity)
    header.index = index
    header.offset = index * CHUNK_ELEMENTS
    header.elements = values.size
    header.crc32c = crc32c.value(wire_values) if place is None else 0
    return TensorChunk(header, wire_values.data)


def copy_with_checksum(chunk: TensorChunk) -> TensorChunk:
    """Return a copy, with a checksum, of a chunk that came through shared memory. The given header gets it too.

    Raises:
        ChunkOverwritten: the payload was overwritten before or during the copy.
    """
    payload = bytes(chunk.payload)
    if not chunk.intact:
        raise ChunkOverwritten(chunk.header)
    chunk.header.crc32c = crc32c.value(payload)
    return TensorChunk(chunk.header, payload)


def cut_piece(chunk: TensorChunk, offset: int, elements: int) -> TensorChunk:
    """Return some elements of a chunk, with a checksum of their own; the payload is a view.

    Args:
        chunk: the chunk, which has them.
        offset: index of the first element in the layout.
        elements: number of elements.
    """
    size = bytes_per_element(chunk.header.dtype)
    start = (offset - chunk.header.offset) * size
    payload = memoryview(chunk.payload)[start : start + elements * size]
    header = ChunkHeader()
    header.CopyFrom(chunk.header)
    header.offset, header.elements, header.crc32c = offset, elements, crc32c.value(payload)
    return TensorChunk(header, payload)


def join_pieces(pieces: Iterable[TensorChunk]) -> TensorChunk:
    """Return the chunk that pieces make up: the bits are those of a worker that sends it whole. It has no checksum.

    Args:
        pieces: at least one piece, in any order.

    Raises:
        ValueError: there are elements between two pieces, or in both.
    """
    first, *others = sorted(pieces, key=lambda piece: piece.header.offset)
    if not others:
        return first
    header = ChunkHeader()
    header.CopyFrom(first.header)
    header.crc32c = 0
    for piece in others:
        stop = header.offset + header.elements
        if piece.header.offset != stop:
            raise ValueError(
                f"chunk {header.index}: a piece begins at {piece.header.offset}, expected {stop}"
            )
        header.elements += piece.header.elements
    return TensorChunk(header, b"".join(piece.payload for piece in (first, *others)))


def bytes_per_element(dtype: int) -> int:
    """Return the size of one element of a payload; 1 for an unknown type, which `check_chunk` refuses."""
    return STORED[_KERNEL_NAMES[dtype]].itemsize if dtype in _KERNEL_NAMES else 1


def describe_float16_overflow(chunk: TensorChunk) -> str | None:
    """Return a warning for people if values of a chunk became infinite in float16, else None."""
    if chunk.header.dtype != FLOAT16:
        return None
    bits = np.frombuffer(chunk.payload, STORED["fp16"])
    infinite = int(np.count_nonzero((bits & 0x7FFF) == _INFINITE_FLOAT16))
    if not infinite:
        return None
    return (
        f"chunk {chunk.header.index}: {infinite} of {chunk.header.elements} elements are infinite in float16, whose "
        f"largest value is {_MAX_FLOAT16}{_describe_origin(chunk.header)}; set wire_dtype to bfloat16 or float32"
    )


def serialize_in_parts(chunk: TensorChunk) -> tuple[bytes, Message]:
    """Return the bytes of a `Chunk` message in two parts: everything before the payload, and the payload itself."""
    header = encode_with_checksum(chunk.header)
    return encode_before_payload(header, memoryview(chunk.payload).nbytes), chunk.payload


def serialize_chunk(chunk: TensorChunk) -> bytes:
    """Return the bytes of a `Chunk` message, with a copy of the payload."""
    return b"".join(serialize_in_parts(chunk))


def deserialize_chunk(message: Message) -> TensorChunk:
    """Parse a `Chunk` message in any valid encoding. The payload is a view if it is the last field.

    Raises:
        ValueError: the bytes are no `Chunk`.
        ChunkRefused: the header does not match its checksum.
    """
    try:
        parts = split_message(message)
        if parts is None:
            chunk = Chunk.FromString(bytes(message))
            checked = _verify(chunk.header, chunk.header.SerializeToString())
            return TensorChunk(chunk.header, chunk.payload, checked=checked)
        content, payload = parts
        header = ChunkHeader.FromString(content)
        checked = _verify(header, content)
    except DecodeError as error:
        raise ValueError(f"a message of {len(message)} bytes is not a Chunk: {error}") from None
    return TensorChunk(header, payload, checked=checked)


def _verify(header: ChunkHeader, content: bytes) -> bool:
    """Verify a header's checksum, if it has one, and clear it; return whether it had one."""
    try:
        return verify_checksum(header, content)
    except ChecksumMismatch as damaged:
        raise ChunkRefused(
            f"chunk {header.index}: header damaged: {damaged}; even this index may be wrong{_describe_origin(header)}"
        ) from None


def check_chunk(chunk: TensorChunk, elements_total: int, dtype: DType, *, pieces: bool = False) -> None:
    """Check that a chunk is intact and fits the layout and the job.

    Args:
        chunk: a received chunk.
        elements_total: number of elements of the layout.
        dtype: wire type of this kind of chunk in the job.
        pieces: whether it may be a piece of a chunk, as in a job with stages.

    Raises:
        ChunkRefused: index, offset, elements, dtype, payload length or checksum is wrong.
        ChunkOverwritten: the chunk was right, but its place in shared memory was overwritten.
    """
    try:
        check_received(chunk.header)  # its texts and losses may be passed on
    except MessageTooLarge as error:
        raise ChunkRefused(
            f"chunk {chunk.header.index}: {error.fault}{_describe_origin(chunk.header)}"
        ) from None
    mismatch = _find_mismatch(chunk, elements_total, dtype, pieces=pieces)
    if mismatch:
        raise ChunkRefused(f"chunk {chunk.header.index}: {mismatch}{_describe_origin(chunk.header)}")
    if not chunk.intact:
        raise ChunkOverwritten(chunk.header)


def _find_mismatch(chunk: TensorChunk, elements_total: int, dtype: DType, *, pieces: bool) -> Refusal | None:
    header, chunks = chunk.header, chunk_count(elements_total)
    if header.index >= chunks:
        return Refusal(f"no such index, the layout has {chunks} chunks")
    start, stop = chunk_range(elements_total, header.index)
    end = header.offset + header.elements
    if pieces and not start <= header.offset < end <= stop:
        return Refusal(f"elements {header.offset} to {end}, expected some from {start} to {stop}")
    if not pieces and header.offset != start:
        return Refusal(f"offset {header.offset}, expected {start}")
    if not pieces and end != stop:
        return Refusal(f"{header.elements} elements, expected {stop - start}")
    if header.dtype != dtype:
        wrong, expected = _name(DType, header.dtype), DType.Name(dtype)
        return Refusal(f"dtype {wrong}, expected {expected} for this kind of chunk")
    payload_bytes = memoryview(chunk.payload).nbytes
    expected_bytes = header.elements * STORED[_KERNEL_NAMES[dtype]].itemsize
    if payload_bytes != expected_bytes:
        return Refusal(f"payload of {payload_bytes} bytes, expected {expected_bytes}")
    if chunk.memory is not None:
        return None
    checksum = crc32c.value(chunk.payload)
    if checksum != header.crc32c:
        return Refusal(f"crc32c {checksum:#010x}, expected {header.crc32c:#010x}: the message was damaged")
    return None


def _describe_origin(header: ChunkHeader) -> str:
    """Return text for people on where a chunk belongs; the header is not trusted."""
    job = header.job if len(header.job) <= _MAX_JOB_CHARACTERS else header.job[:_MAX_JOB_CHARACTERS] + "..."
    return (
        f" ({_name(ChunkKind, header.kind)} of job {job!r}, generation {header.generation}, "
        f"step {header.step}, lease {header.lease})"
    )


def _name(enumeration: Any, value: int) -> str:
    return str(enumeration.Name(value)) if value in enumeration.values() else str(value)
