"""HTTP/2 frames (RFC 9113, sections 4 and 6): numbers, headers, and payloads of a fixed form."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes that a client sends (RFC 9113, section 3.4)."""
FRAME_HEADER_BYTES = 9
DEFAULT_FRAME_BYTES = 16384
"""Longest frame payload until a peer's settings allow more; they can't allow less."""
LARGEST_FRAME_BYTES = (1 << 24) - 1
DEFAULT_WINDOW_BYTES = 65535
LARGEST_WINDOW_BYTES = (1 << 31) - 1

_HEADER = struct.Struct(">BHBBI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_STREAM_MASK = 0x7FFFFFFF


class FrameType(IntEnum):
    """Types of frames; frames of other types are skipped."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flags:
    """Flags of frames; their meaning depends on the frame's type. They are ints because IntFlag's `&` is slow."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class ErrorCode(IntEnum):
    """Reasons for the end of a stream or a connection (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Ids of settings; others are ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ProtocolError(Exception):
    """Violation of HTTP/2 by the peer, in one line; the connection ends with GOAWAY.

    Attributes:
        code: error code of the GOAWAY.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the 9 bytes before a frame's payload."""
    return _HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def read_frame_header(source: memoryview) -> tuple[int, int, int, int]:
    """Return type, flags, stream id and payload length from 9 bytes."""
    high, low, kind, flags, stream_id = _HEADER.unpack(source)
    return kind, flags, stream_id & _STREAM_MASK, high << 16 | low


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(number, value) for number, value in settings.items())
    return frame(FrameType.SETTINGS, 0, 0, payload)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the (id, value) pairs of a SETTINGS payload, whose length must be a multiple of 6."""
    return list(_SETTING.iter_unpack(payload))


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame, which allows `increment` more bytes; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def reset_frame(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def goaway_frame(last_stream_id: int, code: ErrorCode, text: str) -> bytes:
    """Return a GOAWAY frame with a line for people."""
    payload = _NUMBER.pack(last_stream_id) + _NUMBER.pack(code) + text.encode()
    return frame(FrameType.GOAWAY, 0, 0, payload)


def read_uint32(payload: bytes, start: int = 0) -> int:
    """Return the 32-bit number at `start`: a window increment, an error code or a stream id."""
    number: int = _NUMBER.unpack_from(payload, start)[0]
    return number


def error_name(code: int) -> str:
    """Return an error code's name, or its number if it is unknown."""
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error code {code}"
