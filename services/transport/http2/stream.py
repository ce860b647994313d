"""One gRPC stream within a connection: messages in and out, each side's flow control, and how it ended."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import NoReturn, Protocol

from services.instrumentation import failpoints
from services.transport.http2.frames import (
    LARGEST_WINDOW_BYTES,
    ErrorCode,
    FrameType,
    ProtocolError,
    frame_header,
    window_update_frame,
)
from services.transport.http2.messages import PREFIX_BYTES, Assembler, MessageInbox, MessageRefused, prefix
from services.transport.limits import MESSAGE_LIMIT_BYTES

_FRAMING_BYTES = 8 * 1024
WINDOW_BYTES = 8 * 1024 * 1024 + _FRAMING_BYTES
"""A peer may send so much that nobody has read yet, four chunks with their headers; what it is sending comes on top."""

_JOINED_BYTES = 4096  # a shorter part is copied next to the frame's header: cheaper than a buffer of its own
_SMALLEST_GRANT_BYTES = (WINDOW_BYTES - _FRAMING_BYTES) // 2

Part = bytes | bytearray | memoryview


class Sender(Protocol):
    """What a stream needs of its connection to send."""

    send_window: int
    peer_frame_bytes: int
    paused: bool

    def write_all(self, pieces: list[Part]) -> None:
        """Hand pieces to the transport, in order."""


class Stream(ABC):
    """Both ends of a stream are one of these; one task may read it, and one may write it.

    Args:
        connection: that carries it.
        number: of the stream.
        send_window: bytes that the peer takes before it grants more.

    Attributes:
        number: of the stream.
        send_window: bytes that the peer takes now; below 0 after it has taken a grant back.
        over: why nothing more can be sent or will come; empty while the stream is open.
        closed_to_writes: why no message may be written now; empty if one may.
    """

    def __init__(self, connection: Sender, number: int, send_window: int) -> None:
        self.number = number
        self.send_window = send_window
        self.over = ""
        self.closed_to_writes = ""
        self._connection = connection
        self._inbox = MessageInbox()
        self._assembler = Assembler(self._inbox, MESSAGE_LIMIT_BYTES)
        self._receive_window = WINDOW_BYTES
        self._peer_done = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    # ---- for its user ----

    async def read(self) -> memoryview | None:
        """The next message, in memory of its own; None when the peer has sent its last."""
        while not self._inbox:
            if self._peer_done:
                await self._at_end()
                return None
            if self.over:
                self._raise_over()
            self._readable.clear()
            await self._readable.wait()
        message = self._inbox.take()
        self._grant()
        return message.toreadonly()

    async def write(self, *parts: Part) -> None:
        """Send one message: these parts, one after the other. They may be changed once this returns.

        Waits while the peer takes no more, or the network. If that is cancelled within a message, no other can follow.

        Raises:
            ValueError: the message is longer than `MESSAGE_LIMIT_BYTES`, or none can follow.
        """
        if self.closed_to_writes:
            raise ValueError(f"nothing can be written: {self.closed_to_writes}")
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        length = sum(len(view) for view in views)
        if length > MESSAGE_LIMIT_BYTES:
            raise ValueError(
                f"a message of {length} bytes: longer than the {MESSAGE_LIMIT_BYTES} that may be sent"
            )
        waiting = deque((memoryview(prefix(length)), *views))
        left = PREFIX_BYTES + length
        self.closed_to_writes = "a message is being written, or was cut off"
        connection = self._connection
        while left:
            allowed = min(left, connection.send_window, self.send_window)
            if self.over:
                self._raise_over()
            if connection.paused or allowed <= 0:
                await self._wait_writable()
                continue
            left -= allowed
            connection.send_window -= allowed
            self.send_window -= allowed
            pieces = self._frames(waiting, allowed)
            if failpoints.is_armed() and len(pieces) > 1:
                connection.write_all(pieces[:1])
                failpoints.hit_failpoint("stream.mid-message")
                pieces = pieces[1:]
            connection.write_all(pieces)
        while connection.paused and not self.over:  # the transport still holds the parts
            await self._wait_writable()
        self.closed_to_writes = ""

    def _frames(self, waiting: deque[memoryview], allowed: int) -> list[Part]:
        """DATA frames of `allowed` bytes, taken from the front of `waiting`."""
        pieces: list[Part] = []
        while allowed:
            length = left = min(allowed, self._connection.peer_frame_bytes)
            allowed -= length
            head = bytearray(frame_header(FrameType.DATA, 0, self.number, length))
            pieces.append(head)
            while left:
                part = waiting.popleft()
                if len(part) > left:
                    waiting.appendleft(part[left:])
                    part = part[:left]
                left -= len(part)
                if len(part) < _JOINED_BYTES and pieces[-1] is head:
                    head += part
                else:
                    pieces.append(part)
        return pieces

    async def _wait_writable(self) -> None:
        self._writable.clear()
        await self._writable.wait()

    @abstractmethod
    def _raise_over(self) -> NoReturn:
        """Tell that the stream is over, as its user expects."""

    @abstractmethod
    async def _at_end(self) -> None:
        """The peer has sent its last message: tell how it ended, if that was not well."""

    # ---- for its connection ----

    def writable(self) -> None:
        """The peer or the transport takes more."""
        self._writable.set()

    def granted(self, increment: int) -> None:
        """The peer takes so many bytes more.

        Raises:
            ProtocolError: more than can be counted.
        """
        self.send_window += increment
        if self.send_window > LARGEST_WINDOW_BYTES:
            text = f"WINDOW_UPDATE of stream {self.number}: its window would be above {LARGEST_WINDOW_BYTES}"
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        self._writable.set()

    def charge(self, length: int) -> None:
        """A DATA frame of that length is coming.

        Raises:
            ProtocolError: more than the peer was granted, or after its end.
        """
        if self._peer_done:
            raise ProtocolError(f"DATA after the end of stream {self.number}", ErrorCode.STREAM_CLOSED)
        self._receive_window -= length
        if self._receive_window < 0:
            text = f"DATA of {length} bytes: {-self._receive_window} more than stream {self.number} may take"
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        self._grant()

    def room(self) -> memoryview | None:
        """Where the next bytes belong; see `parser.Sink`."""
        return None if self.over else self._assembler.room()

    def advance(self, count: int) -> None:
        """So many bytes came into `room`."""
        self._assembler.advance(count)
        if self._inbox:
            self._readable.set()

    def feed(self, piece: memoryview) -> None:
        """Bytes that came elsewhere."""
        if self.over:
            return
        try:
            self._assembler.feed(piece)
        except MessageRefused as refused:
            self.refuse(refused)
        if self._inbox:
            self._readable.set()

    @abstractmethod
    def refuse(self, refused: MessageRefused) -> None:
        """A message isn't taken: end the stream with that status."""

    def peer_ended(self) -> None:
        """The peer's last frame of this stream has come.

        Raises:
            ProtocolError: in the middle of a message.
        """
        if self._assembler.within and not self.over:
            raise ProtocolError(f"stream {self.number} ended within a message")
        self._peer_done = True
        self._readable.set()

    def end(self, why: str) -> None:
        """Nothing more will come or can be sent; what waits can still be read, unless `drop` is called."""
        if not self.over:
            self.over = why
        self._readable.set()
        self._writable.set()

    def drop(self) -> None:
        """Nobody will read what waits."""
        self._inbox.clear()

    def _grant(self) -> None:
        """Top the peer's window up, by much at a time."""
        missing = WINDOW_BYTES - self._inbox.held_bytes - self._receive_window
        if missing >= _SMALLEST_GRANT_BYTES and not self._peer_done and not self.over:
            self._receive_window += missing
            self._connection.write_all([window_update_frame(self.number, missing)])
