"""One gRPC stream of a connection: its messages, its flow control in both directions, and its end."""

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
"""Receive window: unread bytes that a peer may send, four chunks with their headers, plus a message in progress."""

_JOINED_BYTES = (
    4096  # a shorter part is copied behind the frame's header, which is cheaper than a buffer of its own
)
_SMALLEST_GRANT_BYTES = (WINDOW_BYTES - _FRAMING_BYTES) // 2

BytesLike = bytes | bytearray | memoryview


class Sender(Protocol):
    """Interface of the connection that a stream sends on."""

    send_window: int
    max_send_frame_bytes: int
    paused: bool

    def write_all(self, pieces: list[BytesLike]) -> None:
        """Pass pieces to the transport, in order."""


class Stream(ABC):
    """One end of a stream. One task may read it, and one may write it.

    Args:
        connection: connection that carries the stream.
        stream_id: HTTP/2 stream id.
        send_window: bytes that the peer accepts at first.
        receive_window: unread bytes that the peer may send; see `widen`.

    Attributes:
        stream_id: HTTP/2 stream id.
        send_window: bytes that the peer accepts now; negative after its settings have lowered the window.
        received_bytes: bytes of messages that have come, those of a message in progress too.
        end_reason: reason why the stream has ended; None while it is open.
        write_block_reason: reason why no message may be written now; None if one may.
    """

    def __init__(self, connection: Sender, stream_id: int, send_window: int, receive_window: int) -> None:
        self.stream_id = stream_id
        self.send_window = send_window
        self.received_bytes = 0
        self.end_reason: str | None = None
        self.write_block_reason: str | None = None
        self._connection = connection
        self._inbox = MessageInbox()
        self._assembler = Assembler(self._inbox, MESSAGE_LIMIT_BYTES)
        self._window_bytes = self._receive_window = receive_window
        self._end_stream_seen = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    # ---- for its user ----

    async def read(self) -> memoryview | None:
        """Return the next message, in memory of its own, or None after the peer's last one."""
        while not self._inbox:
            if self._end_stream_seen:
                await self._check_status()
                return None
            if self.end_reason:
                self._raise_ended()
            self._readable.clear()
            await self._readable.wait()
        message = self._inbox.take()
        self._replenish_receive_window()
        return message.toreadonly()

    async def write(self, *parts: BytesLike) -> None:
        """Send one message: the concatenated parts, which may be changed once this returns.

        It waits while the peer or the network accepts no more. After a cancellation within a message nothing else
        can be written.

        Raises:
            ValueError: the message is longer than `MESSAGE_LIMIT_BYTES`, or nothing can be written any longer.
        """
        if self.write_block_reason:
            raise ValueError(f"the stream can't be written to: {self.write_block_reason}")
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        length = sum(len(view) for view in views)
        if length > MESSAGE_LIMIT_BYTES:
            raise ValueError(
                f"a message of {length} bytes, expected at most {MESSAGE_LIMIT_BYTES}; send smaller ones"
            )
        waiting = deque((memoryview(prefix(length)), *views))
        left = PREFIX_BYTES + length
        self.write_block_reason = "a message is being written, or was cut off"
        connection = self._connection
        while left:
            allowed = min(left, connection.send_window, self.send_window)
            if self.end_reason:
                self._raise_ended()
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
        while connection.paused and not self.end_reason:  # until then the transport still refers to the parts
            await self._wait_writable()
        self.write_block_reason = None

    def _frames(self, waiting: deque[memoryview], allowed: int) -> list[BytesLike]:
        """Return DATA frames of `allowed` bytes, taken from the front of `waiting`."""
        pieces: list[BytesLike] = []
        while allowed:
            length = left = min(allowed, self._connection.max_send_frame_bytes)
            allowed -= length
            head = bytearray(frame_header(FrameType.DATA, 0, self.stream_id, length))
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
    def _raise_ended(self) -> NoReturn:
        """Raise the stream's end as an error for its user."""

    @abstractmethod
    async def _check_status(self) -> None:
        """Raise the stream's status after the peer's last message, if the stream ended with an error."""

    # ---- for its connection ----

    def wake_writer(self) -> None:
        """Wake the writer: the peer or the transport accepts more."""
        self._writable.set()

    def increase_send_window(self, increment: int) -> None:
        """Increase the send window.

        Raises:
            ProtocolError: the window would be larger than 2^31 - 1 bytes.
        """
        self.send_window += increment
        if self.send_window > LARGEST_WINDOW_BYTES:
            text = (
                f"WINDOW_UPDATE of stream {self.stream_id}: its window would be above {LARGEST_WINDOW_BYTES}"
            )
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        self._writable.set()

    def consume_receive_window(self, length: int) -> None:
        """Subtract an incoming DATA frame of `length` bytes from the receive window.

        Raises:
            ProtocolError: the frame exceeds the window, or comes after the peer's END_STREAM.
        """
        if self._end_stream_seen:
            raise ProtocolError(f"DATA after the end of stream {self.stream_id}", ErrorCode.STREAM_CLOSED)
        self._receive_window -= length
        if self._receive_window < 0:
            text = (
                f"DATA of {length} bytes: {-self._receive_window} more than stream {self.stream_id} may take"
            )
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        self._replenish_receive_window()

    def receive_buffer(self) -> memoryview | None:
        """Return memory for the next bytes; see `parser.DataSink`."""
        return None if self.end_reason else self._assembler.receive_buffer()

    def advance(self, count: int) -> None:
        """Note that `count` bytes were received into the memory from `receive_buffer`."""
        self.received_bytes += count
        self._assembler.advance(count)
        if self._inbox:
            self._readable.set()

    def feed(self, piece: memoryview) -> None:
        """Copy bytes that were received elsewhere."""
        if self.end_reason:
            return
        self.received_bytes += len(piece)
        try:
            self._assembler.feed(piece)
        except MessageRefused as refused:
            self.refuse(refused)
        if self._inbox:
            self._readable.set()

    @abstractmethod
    def refuse(self, refused: MessageRefused) -> None:
        """End the stream with the status of a message that is not accepted."""

    def end_stream_received(self) -> None:
        """Note that the peer has sent its last frame of this stream.

        Raises:
            ProtocolError: the frame ended within a message, or was not the first last one.
        """
        if self._end_stream_seen:
            raise ProtocolError(f"stream {self.stream_id} was ended twice", ErrorCode.STREAM_CLOSED)
        if self._assembler.within and not self.end_reason:
            raise ProtocolError(f"stream {self.stream_id} ended within a message")
        self._end_stream_seen = True
        self._readable.set()

    def end(self, reason: str) -> None:
        """End the stream. Waiting messages can still be read, unless `drop_unread` is called."""
        if not self.end_reason:
            self.end_reason = reason
        self._readable.set()
        self._writable.set()

    def drop_unread(self) -> None:
        """Drop the messages that wait to be read."""
        self._inbox.clear()

    def widen(self, receive_window: int) -> None:
        """Let the peer send so many unread bytes from now on."""
        if receive_window > self._window_bytes and not self._end_stream_seen and not self.end_reason:
            added = receive_window - self._window_bytes
            self._window_bytes = receive_window
            self._receive_window += added
            self._connection.write_all([window_update_frame(self.stream_id, added)])

    def _replenish_receive_window(self) -> None:
        """Enlarge the peer's window again, in large steps only."""
        missing = self._window_bytes - self._inbox.held_bytes - self._receive_window
        if missing >= _SMALLEST_GRANT_BYTES and not self._end_stream_seen and not self.end_reason:
            self._receive_window += missing
            self._connection.write_all([window_update_frame(self.stream_id, missing)])
