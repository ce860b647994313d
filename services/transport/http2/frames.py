"""HTTP/2 frames (RFC 9113): their numbers, their headers, and those payloads that have a fixed form."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""
FRAME_HEADER_BYTES = 9
DEFAULT_FRAME_BYTES = 16384
"""Longest payload of a frame until a peer says otherwise; it may not say less."""
LARGEST_FRAME_BYTES = (1 << 24) - 1
DEFAULT_WINDOW_BYTES = 65535
LARGEST_WINDOW_BYTES = (1 << 31) - 1

_HEADER = struct.Struct(">BHBBI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_STREAM_MASK = 0x7FFFFFFF


class FrameType(IntEnum):
    """Kinds of frames; others are skipped."""

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
    """Flags of frames; which of them mean something hangs on the frame's kind. Plain numbers: IntFlag's `&` is slow."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class ErrorCode(IntEnum):
    """Why a stream or a connection ended."""

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
    """Settings; others are ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ProtocolError(Exception):
    """The peer broke the rules of HTTP/2: the connection ends with GOAWAY; the text is one line.

    Attributes:
        code: for GOAWAY.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame_header(kind: int, flags: int, stream: int, length: int) -> bytes:
    """The 9 bytes before a frame's payload."""
    return _HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def read_frame_header(source: memoryview) -> tuple[int, int, int, int]:
    """Kind, flags, stream and length from 9 bytes."""
    high, low, kind, flags, stream = _HEADER.unpack(source)
    return kind, flags, stream & _STREAM_MASK, high << 16 | low


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return frame_header(kind, flags, stream, len(payload)) + payload


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """SETTINGS."""
    payload = b"".join(_SETTING.pack(number, value) for number, value in settings.items())
    return frame(FrameType.SETTINGS, 0, 0, payload)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The (number, value) pairs of a SETTINGS payload, which must hold whole ones."""
    return list(_SETTING.iter_unpack(payload))


def window_update_frame(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE: so many more bytes may come; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream, _NUMBER.pack(increment))


def reset_frame(stream: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(FrameType.RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway_frame(last_stream: int, code: ErrorCode, text: str) -> bytes:
    """GOAWAY with a line for people."""
    payload = _NUMBER.pack(last_stream) + _NUMBER.pack(code) + text.encode()
    return frame(FrameType.GOAWAY, 0, 0, payload)


def read_number(payload: bytes, start: int = 0) -> int:
    """32 bits at `start`: a window's increment, an error code, a stream."""
    number: int = _NUMBER.unpack_from(payload, start)[0]
    return number


def error_name(code: int) -> str:
    """An error code's name; the number of one that isn't known."""
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error code {code}"
