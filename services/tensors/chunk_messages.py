"""Chunks on the wire: the bytes of protobuf's `Chunk`, written and read without copying the payload twice.

protobuf's `bytes` fields cost a copy on each side. So functions here stand in for the generated (de)serializers: they
put the payload last, as a part of its own that is sent from where it lies, and read it as a view of the message. Any
other valid encoding goes through protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, Chunk, ChunkHeader, ChunkKind, DType
from services.errors import Refused
from services.protocol.checksums import ChecksumMismatch, encode_with_checksum, verify_checksum
from services.tensors.kernels import crc32c
from services.tensors.kernels.arithmetic import (
    Float32Array,
    accumulate_wire,
    copy_from_wire,
    from_wire,
    to_wire,
)
from services.tensors.kernels.wire_types import STORED, WireDType
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range
from services.tensors.shared_memory import MappedArray

Message = bytes | memoryview
"""One whole message of a data stream, as it is received."""

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_PAYLOAD_TAG = b"\x7a"  # field 15, length-delimited
_KERNEL_NAMES: dict[int, WireDType] = {FLOAT32: "fp32", BFLOAT16: "bf16", FLOAT16: "fp16"}
_LARGEST_FLOAT16 = 65504
_INFINITE_FLOAT16 = 0x7C00
_LONGEST_JOB = 60


class ChunkRefused(Refused):
    """A chunk that contradicts itself or the layout; names the field, its value and what was expected."""


class ChunkOverwritten(ChunkRefused):
    """A chunk of shared memory whose place its owner has filled anew: of weights, with those of a later step."""

    def __init__(self, header: ChunkHeader) -> None:
        super().__init__(
            f"chunk {header.index}: its place in shared memory holds something else: it was overtaken{_of(header)}"
        )


@dataclass(frozen=True)
class TensorChunk:
    """One message of the data plane.

    Attributes:
        header: what the payload is.
        payload: the elements, little-endian; a view of the received message, of the array to be sent, or of memory
            that another process shares.
        memory: that the payload is a view of, if so. There it has no checksum: no wire and no buffer that could damage
            it lies between, and whether it is still there its place's mark tells.
        sequence: that its place in the memory is marked with.
        checked: whether its header came with a checksum, which was right.
    """

    header: ChunkHeader
    payload: bytes | memoryview
    memory: MappedArray | None = None
    sequence: int = 0
    checked: bool = False

    @property
    def intact(self) -> bool:
        """Whether the payload is still what was sent: of memory, whose owner goes on to newer weights by itself."""
        return self.memory is None or self.memory.is_marked(self.header.index, self.sequence)

    def values(self) -> Float32Array:
        """The elements as [elements] float32, for chunks that passed `check`.

        Of float32 it is a view of the payload, read-only if that was received; of other types a new array: work for
        a kernel thread.
        """
        return from_wire(self.payload, _KERNEL_NAMES[self.header.dtype])

    def whole_layout(self) -> Float32Array | None:
        """All elements of the layout, [elements] float32, where these lie among them; None: they do not."""
        memory = self.memory
        if memory is None or memory.stripe_count > 1 or self.header.dtype != FLOAT32:
            return None
        return memory.payload.view(np.float32)

    def copy_to(self, out: Float32Array) -> None:
        """Write the elements to `out`, [elements] float32; for chunks that passed `check`."""
        copy_from_wire(self.payload, _KERNEL_NAMES[self.header.dtype], out)

    def add_to(self, into: Float32Array) -> None:
        """Add the elements to `into`, [elements] float32, in place; for chunks that passed `check`."""
        accumulate_wire(into, self.payload, _KERNEL_NAMES[self.header.dtype])


def pack_chunk(
    identity: ChunkHeader, index: int, values: Float32Array, place: NDArray[np.uint8] | None = None
) -> TensorChunk:
    """Chunk `index` of the layout from its values, [elements] float32, which must not change until sent.

    Of `identity` all fields are taken, among them the dtype that the values are rounded to, but those that describe
    the payload (index, offset, elements and crc32c). With a `place`, [payload bytes] uint8 of shared memory, the
    payload is written there, and has no checksum.
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
    """A chunk that came through shared memory, ready for the wire: its payload is copied, its header changed.

    Raises:
        ChunkOverwritten: it was not there any more.
    """
    payload = bytes(chunk.payload)
    if not chunk.intact:
        raise ChunkOverwritten(chunk.header)
    chunk.header.crc32c = crc32c.value(payload)
    return TensorChunk(chunk.header, payload)


def bytes_per_element(dtype: int) -> int:
    """Of one element of a payload; 1 for a type that doesn't exist, which `check` refuses."""
    return STORED[_KERNEL_NAMES[dtype]].itemsize if dtype in _KERNEL_NAMES else 1


def describe_float16_overflow(chunk: TensorChunk) -> str:
    """What to tell a person of a chunk that float16 could not hold; empty if there is nothing to tell."""
    if chunk.header.dtype != FLOAT16:
        return ""
    bits = np.frombuffer(chunk.payload, STORED["fp16"])
    infinite = int(np.count_nonzero((bits & 0x7FFF) == _INFINITE_FLOAT16))
    if not infinite:
        return ""
    return (
        f"chunk {chunk.header.index}: {infinite} of {chunk.header.elements} elements are infinite in float16, whose "
        f"largest is {_LARGEST_FLOAT16}{_of(chunk.header)}; set wire_dtype to bfloat16 or float32"
    )


def serialize_in_parts(chunk: TensorChunk) -> tuple[bytes, Message]:
    """The bytes of a `Chunk` message, in two parts: what comes before the payload, and the payload itself."""
    header = encode_with_checksum(chunk.header)
    payload_bytes = memoryview(chunk.payload).nbytes
    before = (_HEADER_TAG, _varint(len(header)), header, _PAYLOAD_TAG, _varint(payload_bytes))
    return b"".join(before), chunk.payload


def serialize_chunk(chunk: TensorChunk) -> bytes:
    """The bytes of a `Chunk` message, for those who keep it: a copy of the payload."""
    return b"".join(serialize_in_parts(chunk))


def deserialize_chunk(message: Message) -> TensorChunk:
    """The chunk of a `Chunk` message in any valid encoding; the payload is a view where it is the last field.

    Raises:
        ValueError: the bytes are no `Chunk`.
        ChunkRefused: its header was damaged.
    """
    try:
        bounds = _header_then_payload(message)
        if bounds is None:
            chunk = Chunk.FromString(bytes(message))
            checked = _verify(chunk.header, chunk.header.SerializeToString())
            return TensorChunk(chunk.header, chunk.payload, checked=checked)
        header_start, header_stop, payload_start = bounds
        content = bytes(message[header_start:header_stop])
        header = ChunkHeader.FromString(content)
        checked = _verify(header, content)
    except DecodeError as error:
        raise ValueError(f"a message of {len(message)} bytes is not a Chunk: {error}") from None
    return TensorChunk(header, memoryview(message)[payload_start:], checked=checked)


def _verify(header: ChunkHeader, content: bytes) -> bool:
    """Hold a header against the checksum of its bytes, if it has one, which is taken out of it; whether it had."""
    try:
        return verify_checksum(header, content)
    except ChecksumMismatch as damaged:
        raise ChunkRefused(
            f"chunk {header.index}: header with {damaged}: it was damaged, and may be of another chunk{_of(header)}"
        ) from None


def check_chunk(chunk: TensorChunk, elements_total: int, dtype: DType) -> None:
    """Hold a chunk against itself, a layout of `elements_total` elements, and the job's type for its kind.

    Raises:
        ChunkRefused: index, offset, elements, dtype, payload length or checksum is not what it must be.
        ChunkOverwritten: it is right, but no longer there.
    """
    wrong = _what_is_wrong(chunk, elements_total, dtype)
    if wrong:
        raise ChunkRefused(f"chunk {chunk.header.index}: {wrong}{_of(chunk.header)}")
    if not chunk.intact:
        raise ChunkOverwritten(chunk.header)


def _what_is_wrong(chunk: TensorChunk, elements_total: int, dtype: DType) -> str:
    header, chunks = chunk.header, chunk_count(elements_total)
    if header.index >= chunks:
        return f"no such index, the layout has {chunks} chunks"
    start, stop = chunk_range(elements_total, header.index)
    if header.offset != start:
        return f"offset {header.offset}, expected {start}"
    if header.elements != stop - start:
        return f"{header.elements} elements, expected {stop - start}"
    if header.dtype != dtype:
        return f"dtype {_name(DType, header.dtype)}, expected {DType.Name(dtype)} for this kind of chunk"
    payload_bytes = memoryview(chunk.payload).nbytes
    expected_bytes = header.elements * STORED[_KERNEL_NAMES[dtype]].itemsize
    if payload_bytes != expected_bytes:
        return f"payload of {payload_bytes} bytes, expected {expected_bytes}"
    if chunk.memory is not None:
        return ""
    checksum = crc32c.value(chunk.payload)
    if checksum != header.crc32c:
        return f"crc32c {checksum:#010x}, expected {header.crc32c:#010x}: it was damaged"
    return ""


def _of(header: ChunkHeader) -> str:
    """Where a chunk belongs, for people; a stranger may have written it."""
    job = header.job if len(header.job) <= _LONGEST_JOB else header.job[:_LONGEST_JOB] + "..."
    return (
        f" ({_name(ChunkKind, header.kind)} of job {job!r}, generation {header.generation}, "
        f"step {header.step}, lease {header.lease})"
    )


def _name(enumeration: Any, value: int) -> str:
    return str(enumeration.Name(value)) if value in enumeration.values() else str(value)


def _header_then_payload(message: Message) -> tuple[int, int, int] | None:
    """Where header and payload start and the header ends, if the message is just these two, in this order."""
    if message[:1] != _HEADER_TAG:
        return None
    header_bytes, header_start = _read_varint(message, 1)
    header_stop = header_start + header_bytes
    if message[header_stop : header_stop + 1] != _PAYLOAD_TAG:
        return None
    payload_bytes, payload_start = _read_varint(message, header_stop + 1)
    if payload_start + payload_bytes != len(message):
        return None
    return header_start, header_stop, payload_start


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: Message, start: int) -> tuple[int, int]:
    """A length at `start` and what follows it starts; (-1, start), which fits no message, if it is none."""
    value = 0
    for position, byte in enumerate(message[start : start + 5]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, start + position + 1
    return -1, start
