"""A checksum within a protobuf message: its last field, over all bytes before it.

What flips bits on the way (a card, a buffer, beyond TCP's 16 bits) does so to headers as it does to payloads. A message
type with an `optional fixed32 own_crc32c = 15` can be checked. Any protobuf can write it: the bytes of the message
without it, then those of a message that has it alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import google_crc32c
from google.protobuf.message import DecodeError, Message

_TAG = b"\x7d"  # field 15, 32 bits
_FIELD_BYTES = 5

Kind = TypeVar("Kind", bound=Message)


class ChecksumMismatch(ValueError):
    """Bytes that are not those that were sent."""


def encode_with_checksum(message: Message) -> bytes:
    """The bytes of a message, which has no checksum yet, and their checksum."""
    content = message.SerializeToString()
    return b"".join((content, _TAG, google_crc32c.value(content).to_bytes(4, "little")))


def set_checksum(message: Any, before: bytes) -> None:
    """Give a message, which has no checksum yet, that of the bytes before it in another message, and of its own."""
    message.own_crc32c = google_crc32c.value(before + message.SerializeToString())


def decode_with_checksum(kind: type[Kind], content: bytes) -> tuple[Kind, bool]:
    """The message of these bytes, and whether they have a checksum.

    Raises:
        Damaged: it is another one, or they are no message of this kind.
    """
    try:
        message = kind.FromString(content)
    except DecodeError:
        raise ChecksumMismatch(f"expected a {kind.DESCRIPTOR.name}") from None
    return message, verify_checksum(message, content)


def verify_checksum(message: Any, content: bytes) -> bool:
    """Whether a message that was parsed from these bytes has a checksum, which is taken out of it.

    Raises:
        Damaged: it is not theirs.
    """
    if not message.HasField("own_crc32c"):
        return False
    expected = message.own_crc32c
    message.ClearField("own_crc32c")
    found = google_crc32c.value(content[:-_FIELD_BYTES])
    if found != expected:
        raise ChecksumMismatch(f"crc32c {found:#010x}, expected {expected:#010x}")
    return True
