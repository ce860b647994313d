"""Messages whose header is field 1 and whose payload is field 15, written and read without a copy of the payload.

A protobuf `bytes` field costs one copy on each side. Here the payload is sent straight from its array, and read as a
view of the received message. The bytes are those of protobuf.
"""

from __future__ import annotations

Message = bytes | memoryview
"""One complete message of a data stream, as received."""

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_PAYLOAD_TAG = b"\x7a"  # field 15, length-delimited


def encode_before_payload(header: bytes, payload_bytes: int) -> bytes:
    """Return all bytes of a message that come before its payload."""
    return b"".join(
        (_HEADER_TAG, _varint(len(header)), header, _PAYLOAD_TAG, _varint(payload_bytes)),
    )


def split_message(message: Message) -> tuple[bytes, memoryview] | None:
    """Return the bytes of a message's header, and its payload, a view.

    None if the message does not have just these two, in this order: then protobuf has to parse it.
    """
    if message[:1] != _HEADER_TAG:
        return None
    header_bytes, header_start = _read_varint(message, 1)
    header_stop = header_start + header_bytes
    if message[header_stop : header_stop + 1] != _PAYLOAD_TAG:
        return None
    payload_bytes, payload_start = _read_varint(message, header_stop + 1)
    if payload_start + payload_bytes != len(message):
        return None
    return bytes(message[header_start:header_stop]), memoryview(message)[payload_start:]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: Message, start: int) -> tuple[int, int]:
    """Return the varint at `start` and the index after it; (-1, start), which fits no message, if it is invalid."""
    value = 0
    for position, byte in enumerate(message[start : start + 5]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, start + position + 1
    return -1, start
