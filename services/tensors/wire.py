"""Chunks on the wire: the bytes of protobuf's `Chunk`, written and read without copying the payload twice.

gRPC's Python takes and gives whole messages as `bytes`, and protobuf's `bytes` fields cost one more copy on
each side. So two functions here stand in for the generated (de)serializers: they write the payload as the
last field by one join, and read it as a view of the message. Any other valid encoding goes through protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from protos.tensors_pb2 import FLOAT32, Chunk, ChunkHeader, DType
from services.errors import Refused
from services.tensors.kernels import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_PAYLOAD_TAG = b"\x7a"  # field 15, length-delimited
_WIRE_FLOAT32 = np.dtype("<f4")


class ChunkRefused(Refused):
    """A chunk that contradicts itself or the layout; names the field, its value and what was expected."""


@dataclass(frozen=True)
class TensorChunk:
    """One message of the data plane.

    Attributes:
        header: what the payload is.
        payload: the elements, little-endian; a view of the received message, or of the array to be sent.
    """

    header: ChunkHeader
    payload: bytes | memoryview

    def values(self) -> Float32Array:
        """The payload as [elements] float32, read-only if it was received; for chunks that passed `check`."""
        return np.frombuffer(self.payload, _WIRE_FLOAT32)


def pack(identity: ChunkHeader, index: int, values: Float32Array) -> TensorChunk:
    """Chunk `index` of the layout from its values, [elements] float32, which must not change until sent.

    Of `identity` all fields are taken but those that describe the payload (index, offset, elements, dtype and
    crc32c).
    """
    wire_values = np.ascontiguousarray(values, _WIRE_FLOAT32)
    header = ChunkHeader()
    header.CopyFrom(identity)
    header.index = index
    header.offset = index * CHUNK_ELEMENTS
    header.elements = wire_values.size
    header.dtype = FLOAT32
    header.crc32c = google_crc32c.value(wire_values)
    return TensorChunk(header, wire_values.data.cast("B"))


def serialize(chunk: TensorChunk) -> bytes:
    """The bytes of a `Chunk` message; the only copy of the payload on the way to gRPC."""
    header = chunk.header.SerializeToString()
    payload_bytes = memoryview(chunk.payload).nbytes
    return b"".join(
        (_HEADER_TAG, _varint(len(header)), header, _PAYLOAD_TAG, _varint(payload_bytes), chunk.payload)
    )


def deserialize(message: bytes) -> TensorChunk:
    """The chunk of a `Chunk` message in any valid encoding; the payload is a view where it is the last field.

    Raises:
        ValueError: the bytes are no `Chunk`.
    """
    try:
        bounds = _header_then_payload(message)
        if bounds is None:
            chunk = Chunk.FromString(message)
            return TensorChunk(chunk.header, chunk.payload)
        header_start, header_stop, payload_start = bounds
        header = ChunkHeader.FromString(message[header_start:header_stop])
    except DecodeError as error:
        raise ValueError(f"a message of {len(message)} bytes is not a Chunk: {error}") from None
    return TensorChunk(header, memoryview(message)[payload_start:])


def check(chunk: TensorChunk, elements_total: int) -> None:
    """Hold a chunk against itself and a layout of `elements_total` elements.

    Raises:
        ChunkRefused: index, offset, elements, dtype, payload length or checksum is not what it must be.
    """
    header, chunks = chunk.header, chunk_count(elements_total)
    if header.index >= chunks:
        raise ChunkRefused(f"chunk {header.index}: no such index, the layout has {chunks} chunks")
    start, stop = chunk_range(elements_total, header.index)
    if header.offset != start:
        raise ChunkRefused(f"chunk {header.index}: offset {header.offset}, expected {start}")
    if header.elements != stop - start:
        raise ChunkRefused(f"chunk {header.index}: {header.elements} elements, expected {stop - start}")
    if header.dtype != FLOAT32:
        dtype = DType.Name(header.dtype) if header.dtype in DType.values() else str(header.dtype)
        raise ChunkRefused(f"chunk {header.index}: dtype {dtype}, expected FLOAT32; no other is built yet")
    payload_bytes = memoryview(chunk.payload).nbytes
    if payload_bytes != header.elements * _WIRE_FLOAT32.itemsize:
        expected = header.elements * _WIRE_FLOAT32.itemsize
        raise ChunkRefused(f"chunk {header.index}: payload of {payload_bytes} bytes, expected {expected}")
    # The extension takes no memoryview; an array over it costs nothing.
    checksum = google_crc32c.value(np.frombuffer(chunk.payload, np.uint8))
    if checksum != header.crc32c:
        raise ChunkRefused(
            f"chunk {header.index}: crc32c {checksum:#010x}, expected {header.crc32c:#010x}: it was damaged"
        )


def _header_then_payload(message: bytes) -> tuple[int, int, int] | None:
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


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """A length at `start` and what follows it starts; (-1, start), which fits no message, if it is none."""
    value = 0
    for position, byte in enumerate(message[start : start + 5]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, start + position + 1
    return -1, start
