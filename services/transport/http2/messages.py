"""gRPC messages in the DATA frames of a stream: assembled in their final memory, and queued until they are read."""

from __future__ import annotations

import struct
from collections import deque

import grpc
import numpy as np

PREFIX_BYTES = 5
"""Bytes before each message: a compression flag and the length."""

_PREFIX = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_SMALL_BYTES = 4096
_ALIGNMENT_BYTES = 64
_RUN_BYTES = 64 * 1024


class MessageRefused(Exception):
    """A message that is not accepted.

    Attributes:
        code: status with which the stream ends.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def prefix(length: int) -> bytes:
    """Return the prefix of a message of this length."""
    return _PREFIX.pack(0, length)


class MessageInbox:
    """Whole messages that wait to be read.

    Small messages are joined in runs of bytes, so that a million empty ones need no more memory than on the wire.

    Attributes:
        held_bytes: bytes of the waiting messages on the wire.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._waiting: deque[memoryview | bytearray] = deque()
        self._position = 0  # in the first run

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: memoryview) -> None:
        """Append a message."""
        self.held_bytes += PREFIX_BYTES + len(message)
        if len(message) >= _SMALL_BYTES:
            self._waiting.append(message)
            return
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, bytearray) or len(last) > _RUN_BYTES:
            last = bytearray()
            self._waiting.append(last)
        last += _LENGTH.pack(len(message))
        last += message

    def take(self) -> memoryview:
        """Remove and return the oldest message; there must be one."""
        first = self._waiting[0]
        if isinstance(first, bytearray):
            start = self._position + _LENGTH.size
            self._position = start + _LENGTH.unpack_from(first, self._position)[0]
            message = memoryview(bytes(memoryview(first)[start : self._position]))
            if self._position == len(first):
                self._waiting.popleft()
                self._position = 0
        else:
            message = first
            self._waiting.popleft()
        self.held_bytes -= PREFIX_BYTES + len(message)
        return message

    def clear(self) -> None:
        """Drop all messages."""
        self._waiting.clear()
        self._position = self.held_bytes = 0


class Assembler:
    """Assembles messages from received bytes and puts them into an inbox.

    Args:
        inbox: inbox for whole messages.
        limit_bytes: longest message accepted.
    """

    def __init__(self, inbox: MessageInbox, limit_bytes: int) -> None:
        self._inbox = inbox
        self._limit_bytes = limit_bytes
        self._prefix = bytearray()
        self._body: memoryview | None = None
        self._filled = 0

    @property
    def within(self) -> bool:
        """Whether a message has come in part."""
        return self._body is not None or len(self._prefix) > 0

    def receive_buffer(self) -> memoryview | None:
        """Return memory for the next bytes of the current message, to be reported by `advance`.

        None means that the next message's prefix comes first; it goes through `feed`.
        """
        return None if self._body is None else self._body[self._filled :]

    def advance(self, count: int) -> None:
        """Note that `count` bytes were received into the memory from `receive_buffer`."""
        assert self._body is not None
        self._filled += count
        if self._filled == len(self._body):
            self._inbox.put(self._body)
            self._body = None

    def feed(self, piece: memoryview) -> None:
        """Copy bytes that were received elsewhere.

        Raises:
            MessageRefused: a message is longer than the limit, or compressed.
        """
        while piece:
            room = self.receive_buffer()
            if room is not None:
                count = min(len(room), len(piece))
                room[:count] = piece[:count]
                self.advance(count)
            else:
                count = min(PREFIX_BYTES - len(self._prefix), len(piece))
                self._prefix += piece[:count]
                if len(self._prefix) == PREFIX_BYTES:
                    self._begin()
            piece = piece[count:]

    def _begin(self) -> None:
        compressed, length = _PREFIX.unpack(self._prefix)
        self._prefix.clear()
        if compressed:
            raise MessageRefused(
                grpc.StatusCode.UNIMPLEMENTED,
                "a compressed message, expected an uncompressed one; send it with grpc-encoding identity",
            )
        if length > self._limit_bytes:
            text = f"a message of {length} bytes, expected at most {self._limit_bytes}; send smaller ones"
            raise MessageRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if length:
            self._body = _aligned_at_its_end(length)
            self._filled = 0
        else:
            self._inbox.put(memoryview(b""))


def _aligned_at_its_end(length: int) -> memoryview:
    """Return uninitialised memory whose end is aligned, because the array comes last in a chunk's message.

    A bytearray would be zeroed first.
    """
    memory = np.empty(length + _ALIGNMENT_BYTES, np.uint8)
    start = -(memory.ctypes.data + length) % _ALIGNMENT_BYTES
    return memory[start : start + length].data
