"""gRPC's messages within the DATA frames of a stream: put together in the memory they stay in, and kept until read."""

from __future__ import annotations

import struct
from collections import deque

import grpc
import numpy as np

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length."""

_PREFIX = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_SMALL_BYTES = 4096
_ALIGNMENT_BYTES = 64
_RUN_BYTES = 64 * 1024


class MessageRefused(Exception):
    """A message that isn't taken; the stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def prefix(length: int) -> bytes:
    """What goes before a message of that length."""
    return _PREFIX.pack(0, length)


class MessageInbox:
    """Whole messages that wait to be read.

    Small ones lie one after the other in runs of bytes, so that a million empty ones cost no more memory than they did
    on the wire.

    Attributes:
        held_bytes: of the messages, as on the wire.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._waiting: deque[memoryview | bytearray] = deque()
        self._position = 0  # in the first run

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: memoryview) -> None:
        """Append."""
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
        """The oldest message; there must be one."""
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
        """Drop all."""
        self._waiting.clear()
        self._position = self.held_bytes = 0


class Assembler:
    """Puts messages together as their bytes come in, and gives them to an inbox.

    Args:
        inbox: for whole messages.
        limit_bytes: longest message.
    """

    def __init__(self, inbox: MessageInbox, limit_bytes: int) -> None:
        self._inbox = inbox
        self._limit_bytes = limit_bytes
        self._prefix = bytearray()
        self._body: memoryview | None = None
        self._filled = 0

    @property
    def within(self) -> bool:
        """Whether part of a message has come, and not all."""
        return self._body is not None or len(self._prefix) > 0

    def room(self) -> memoryview | None:
        """Where the message's next bytes belong: they may be received right there, and told of by `advance`.

        None: what follows is the next message's prefix.
        """
        return None if self._body is None else self._body[self._filled :]

    def advance(self, count: int) -> None:
        """So many bytes came into `room`."""
        assert self._body is not None
        self._filled += count
        if self._filled == len(self._body):
            self._inbox.put(self._body)
            self._body = None

    def feed(self, piece: memoryview) -> None:
        """Copy bytes in that came elsewhere.

        Raises:
            MessageRefused: a message is longer than the limit, or compressed.
        """
        while piece:
            room = self.room()
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
                "a compressed message: none is taken here; send it with grpc-encoding identity",
            )
        if length > self._limit_bytes:
            text = f"a message of {length} bytes: longer than the {self._limit_bytes} that are taken; send smaller ones"
            raise MessageRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if length:
            self._body = _aligned_at_its_end(length)
            self._filled = 0
        else:
            self._inbox.put(memoryview(b""))


def _aligned_at_its_end(length: int) -> memoryview:
    """New memory, not zeroed, unlike a bytearray's: an array that comes last in a message lies as kernels like it."""
    memory = np.empty(length + _ALIGNMENT_BYTES, np.uint8)
    start = -(memory.ctypes.data + length) % _ALIGNMENT_BYTES
    return memory[start : start + length].data
