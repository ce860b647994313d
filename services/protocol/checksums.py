"""Checksum within a protobuf message: its last field, a CRC-32C (RFC 3720) of all bytes before it.

Faulty network cards and buffers flip bits that TCP's 16-bit checksum misses, in headers as well as in payloads. Every
message type with the field `optional fixed32 own_crc32c = 15` can be checked. Any protobuf library can write it:
serialize the message without the field, then append a message that has only this field.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from native import crc32c

_TAG = b"\x7d"  # field 15, 32 bits
_FIELD_BYTES = 5

Kind = TypeVar("Kind", bound=Message)


class ChecksumMismatch(ValueError):
    """Received bytes that differ from the bytes that were sent."""


def encode_with_checksum(message: Message) -> bytes:
    """Return the bytes of a message, followed by their checksum. The message itself must have none."""
    content = message.SerializeToString()
    return b"".join((content, _TAG, crc32c.value(content).to_bytes(4, "little")))


def set_checksum(message: Any, before: bytes) -> None:
    """Set a message's checksum, computed over its own bytes and over the bytes that precede it in an outer message."""
    message.own_crc32c = crc32c.value(before + message.SerializeToString())


def decode_with_checksum(kind: type[Kind], content: bytes) -> tuple[Kind, bool]:
    """Parse a message and verify its checksum.

    Returns:
        The message without its checksum, and whether it had one.

    Raises:
        ChecksumMismatch: the checksum is wrong, or the bytes are no message of this kind.
    """
    try:
        message = kind.FromString(content)
    except DecodeError:
        raise ChecksumMismatch(f"expected a {kind.DESCRIPTOR.name}") from None
    return message, verify_checksum(message, content)


def verify_checksum(message: Any, content: bytes) -> bool:
    """Verify a message's checksum, if it has one, and clear the field.

    Args:
        message: the parsed message.
        content: the bytes that it was parsed from.

    Returns:
        Whether the message had a checksum.

    Raises:
        ChecksumMismatch: the checksum is wrong.
    """
    if not message.HasField("own_crc32c"):
        return False
    expected = message.own_crc32c
    message.ClearField("own_crc32c")
    found = crc32c.value(content[:-_FIELD_BYTES])
    if found != expected:
        raise ChecksumMismatch(f"crc32c {found:#010x}, expected {expected:#010x}")
    return True
