"""One HTTP/2 connection with one gRPC stream, on asyncio: what client and server have in common.

Only the event loop's thread uses it. Whatever a peer sends, its memory is bounded by a stream's window, one message
and some small frames, and its work by the bytes of its messages and a budget of frames (`frame_budget.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

from services.transport.addresses import join_address
from services.transport.http2.frame_budget import FrameAllowance, FrameBudget
from services.transport.http2.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    LARGEST_FRAME_BYTES,
    LARGEST_WINDOW_BYTES,
    ErrorCode,
    Flags,
    FrameType,
    ProtocolError,
    Setting,
    error_name,
    frame,
    goaway_frame,
    read_settings,
    read_uint32,
    settings_frame,
    window_update_frame,
)
from services.transport.http2.headers import HeaderCodec, Headers
from services.transport.http2.parser import CONTROL_FRAME_BYTES, DataSink, FrameParser
from services.transport.http2.stream import WINDOW_BYTES, BytesLike, Stream
from services.transport.limits import (
    HEADER_LIST_BYTES,
    HELLO_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
)

log = logging.getLogger("tiermesh")


_TLS_BUFFER_BYTES = 64 * 1024
_MOST_UNSENT_REPLIES = 100
_MOST_SETTINGS = 32
_MOST_IGNORED_BYTES = 2 * WINDOW_BYTES
_MOST_CONTINUATIONS = 64
_IGNORED = memoryview(bytearray(64 * 1024))
"""Where all connections receive what they ignore. Memory of its own for each would add up in a flood."""
_PEER_TEXT_BYTES = 200


@dataclass(frozen=True)
class ConnectionTimes:
    """Time limits of a connection.

    Attributes:
        keepalive_seconds: time without traffic after which the peer is pinged.
        keepalive_timeout_seconds: time without an answer to a ping after which the connection is dead.
        linger_seconds: time for the peer to read the last frames and to close, before the connection is aborted.
        call_seconds: time from a client's connection to its call, for servers.
    """

    keepalive_seconds: float = KEEPALIVE_SECONDS
    keepalive_timeout_seconds: float = KEEPALIVE_TIMEOUT_SECONDS
    linger_seconds: float = 5.0
    call_seconds: float = HELLO_SECONDS


STANDARD_TIMES = ConnectionTimes()
"""Time limits derived from the standard heartbeat."""


class Connection(asyncio.BufferedProtocol, ABC):
    """One end of an HTTP/2 connection. Subclasses handle headers.

    Args:
        peer: name of the peer for error texts, until the connection is made.
        settings: settings to announce, besides those of both sides.
        expect_preface: whether the peer is the client.
        allowance: frames without payload that the peer may send.
        times: time limits.

    Attributes:
        peer: `HOST:PORT` of the peer, for error texts.
        send_window: bytes that the peer accepts now, on all streams.
        initial_send_window: initial send window of a stream.
        max_send_frame_bytes: longest frame payload that the peer accepts.
        paused: whether the transport has bytes that it could not send yet.
        stream: the stream, once there is one.
        highest_peer_stream_id: highest stream id that the peer has opened.
        settings_received: whether the peer's settings have come, which shows that it speaks HTTP/2.
        settings_received_or_closed: event that is set when the peer's settings have come, or the connection is over.
        closed: event that is set when the connection is over.
    """

    def __init__(
        self,
        peer: str,
        settings: dict[Setting, int],
        *,
        expect_preface: bool,
        allowance: FrameAllowance,
        times: ConnectionTimes,
    ) -> None:
        self.peer = peer
        self.send_window = DEFAULT_WINDOW_BYTES
        self.initial_send_window = DEFAULT_WINDOW_BYTES
        self.max_send_frame_bytes = DEFAULT_FRAME_BYTES
        self.paused = False
        self.stream: Stream | None = None
        self.highest_peer_stream_id = 0
        self.codec = HeaderCodec()
        self.settings_received = False
        self.settings_received_or_closed = asyncio.Event()
        self.closed = asyncio.Event()
        self._settings = settings
        self._times = times
        self._parser = FrameParser(self, expect_preface=expect_preface)
        self._loop = asyncio.get_running_loop()
        self._budget = FrameBudget(allowance, self._loop.time)
        self._transport: asyncio.Transport
        self._receive_window = LARGEST_WINDOW_BYTES
        self._block = bytearray()
        self._block_frames = 0
        self._block_ends_stream = False
        self._unsent_replies = 0
        self._ignores = False  # what is received from now on
        self._ignored_bytes = 0
        self._loss_reason: str | None = None
        self._heard_seconds = 0.0
        self._pinged_seconds = -math.inf  # when the last ping was sent
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Announce settings, with windows and frames so large that Tiermesh's own peers never wait for them."""
        self._transport = cast(asyncio.Transport, transport)
        self._write_buffer_bytes = _TLS_BUFFER_BYTES if transport.get_extra_info("ssl_object") else 0
        self._transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self._announce()
        self._heard_seconds = self._loop.time()
        self._schedule_keepalive(self._times.keepalive_seconds)

    def _announce(self) -> None:
        settings = {
            **self._settings,
            Setting.MAX_FRAME_SIZE: LARGEST_FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        }
        more = LARGEST_WINDOW_BYTES - DEFAULT_WINDOW_BYTES
        self.write_all([settings_frame(settings), window_update_frame(0, more)])

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for the transport to receive into."""
        return _IGNORED if self._ignores else self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse `nbytes` received bytes."""
        self._heard_seconds = self._loop.time()
        if self._ignores:
            self._ignored_bytes += nbytes
            if self._ignored_bytes > _MOST_IGNORED_BYTES:
                self._transport.abort()
            return
        try:
            self._parser.received(nbytes)
        except ProtocolError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """Let the transport close, as the peer sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream and wake all that wait for the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self.paused = False
        self._parser.release()
        self.connection_terminated(f"{self.peer}: {self._loss_text(exc)}")
        self.settings_received_or_closed.set()
        self.closed.set()

    def pause_writing(self) -> None:
        """Note that the transport has bytes that the network does not accept yet."""
        self.paused = True

    def resume_writing(self) -> None:
        """Wake the writer, as the transport has sent its bytes."""
        self.paused = False
        self._unsent_replies = 0
        if self.stream is not None:
            self.stream.wake_writer()

    def write_all(self, pieces: list[BytesLike]) -> None:
        """Pass pieces to the transport, in order. Only TLS copies them."""
        if self._ignores or self._transport.is_closing():
            return
        self._budget.earn(sum(map(len, pieces)))
        self._transport.writelines(pieces)
        if not self.paused and self._transport.get_write_buffer_size() > self._write_buffer_bytes:
            # In some Pythons writelines does not call pause_writing; setting the limits again does.
            self._transport.set_write_buffer_limits(high=self._write_buffer_bytes)

    # ---- its end ----

    @abstractmethod
    def connection_terminated(self, reason: str) -> None:
        """End the stream, as the connection can't be used any longer."""

    def close_with_goaway(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Send GOAWAY, let the peer read what was sent, then close."""
        if self._ignores or self._transport.is_closing():
            return
        self.write_all([goaway_frame(self.highest_peer_stream_id, code, text)])
        # Closing with unread bytes would reset the connection, and the peer might never read the last frames.
        self._ignores = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._times.linger_seconds, self._transport.abort)
        # Over TLS the peer closes first: asyncio would drop bytes that it has decrypted but not passed on.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close at once, without sending what waits."""
        self._transport.abort()

    def close(self) -> None:
        """Close after what was written is sent, but no later than `ConnectionTimes.linger_seconds`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._times.linger_seconds, self._transport.abort)
        self._transport.close()

    def _fail(self, error: ProtocolError) -> None:
        text = f"{self.peer}: the peer broke the rules of HTTP/2: {error}"
        self.log_violation(text)
        self.close_with_goaway(error.code, str(error))
        self.connection_terminated(text)
        self.settings_received_or_closed.set()

    def log_violation(self, text: str) -> None:
        """Log that the peer broke a rule."""
        log.warning("data stream of %s", text)

    def _loss_text(self, error: Exception | None) -> str:
        if self._loss_reason:
            return self._loss_reason
        return f"the connection broke ({error})" if error else "the connection was closed"

    def _schedule_keepalive(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check_keepalive)

    def _check_keepalive(self) -> None:
        """Ping a silent peer, and abort the connection if it does not answer.

        Only a ping without an answer shows that the peer is gone: while this process is stopped, it sends none.
        """
        now = self._loop.time()
        silent, unanswered = now - self._heard_seconds, now - self._pinged_seconds
        interval, timeout = self._times.keepalive_seconds, self._times.keepalive_timeout_seconds
        if silent < interval:
            self._schedule_keepalive(interval - silent)
        elif self._pinged_seconds <= self._heard_seconds:
            self.write_all([frame(FrameType.PING, 0, 0, bytes(8))])
            self._pinged_seconds = now
            self._schedule_keepalive(min(interval, timeout))
        elif unanswered < timeout:
            self._schedule_keepalive(min(interval, timeout - unanswered))
        else:
            self._loss_reason = f"no answer to a ping within {timeout:g} s"
            self._transport.abort()

    # ---- frames ----

    def frame_started(self, kind: int, length: int) -> None:
        """Charge a frame to the peer's budget."""
        self._budget.spend(kind, length)

    def data_started(self, stream_id: int, length: int) -> DataSink | None:
        """Charge a DATA frame to the windows, and return the stream that takes its payload."""
        self._receive_window -= length
        if self._receive_window < LARGEST_WINDOW_BYTES // 2:
            self.write_all([window_update_frame(0, LARGEST_WINDOW_BYTES - self._receive_window)])
            self._receive_window = LARGEST_WINDOW_BYTES
        target = self._find_stream(stream_id, "DATA")
        if target is None:
            self._budget.spend_dropped(length)
        else:
            target.consume_receive_window(length)
        return target

    def data_ended(self, stream_id: int, end_stream: bool) -> None:
        """Note the end of a DATA frame."""
        target = self._find_stream(stream_id, "DATA")
        if end_stream and target is not None:
            target.end_stream_received()

    def frame_received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame other than DATA."""
        match kind:
            case FrameType.HEADERS:
                self._headers_frame(flags, stream_id, payload)
            case FrameType.CONTINUATION:
                self._header_block_fragment(flags, stream_id, payload)
            case FrameType.SETTINGS:
                self._settings_frame(flags, stream_id, payload)
            case FrameType.WINDOW_UPDATE:
                self._window_frame(stream_id, payload)
            case FrameType.PING:
                self._check("PING", stream_id, payload, 8, of_connection=True)
                if not flags & Flags.ACK:
                    self._reply(frame(FrameType.PING, Flags.ACK, 0, payload))
            case FrameType.RST_STREAM:
                self._check("RST_STREAM", stream_id, payload, 4, of_connection=False)
                target = self._find_stream(stream_id, "RST_STREAM")
                if target is not None:
                    self.stream_reset(read_uint32(payload))
            case FrameType.GOAWAY:
                self._goaway_frame(stream_id, payload)
            case _:
                raise ProtocolError(f"{FrameType(kind).name}: not allowed from the peer")

    @abstractmethod
    def headers_received(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        """Handle headers of a stream."""

    @abstractmethod
    def stream_reset(self, code: int) -> None:
        """Handle a RST_STREAM of the stream."""

    def _find_stream(self, stream_id: int, what: str) -> Stream | None:
        """Return the stream with this id, or None if it is over and forgotten.

        Raises:
            ProtocolError: there never was such a stream.
        """
        if self.stream is not None and self.stream.stream_id == stream_id:
            return self.stream
        if stream_id > max(self.highest_peer_stream_id, self.stream.stream_id if self.stream else 0):
            raise ProtocolError(f"{what} of stream {stream_id}, which was never opened")
        return None

    def _headers_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError("HEADERS of stream 0, expected a stream above 0")
        start, padding = 0, 0
        if flags & Flags.PADDED:
            start, padding = 1, payload[0] if payload else 0
        if flags & Flags.PRIORITY:
            start += 5
        if start + padding > len(payload):
            raise ProtocolError(f"HEADERS: {padding} bytes of padding in a shorter frame")
        self._block.clear()
        self._block_frames = 0
        self._block_ends_stream = bool(flags & Flags.END_STREAM)
        self._header_block_fragment(flags, stream_id, payload[start : len(payload) - padding])

    def _header_block_fragment(self, flags: int, stream_id: int, piece: bytes) -> None:
        self._block += piece
        self._block_frames += 1
        if len(self._block) > CONTROL_FRAME_BYTES or self._block_frames > _MOST_CONTINUATIONS:
            text = f"headers of more than {CONTROL_FRAME_BYTES} bytes or {_MOST_CONTINUATIONS} frames"
            raise ProtocolError(text, ErrorCode.ENHANCE_YOUR_CALM)
        if flags & Flags.END_HEADERS:
            headers = self.codec.decode(bytes(self._block))
            self._block.clear()
            self.headers_received(stream_id, headers, self._block_ends_stream)

    def _settings_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(f"SETTINGS of stream {stream_id}, expected stream 0")
        if len(payload) % 6 or (flags & Flags.ACK and payload):
            raise ProtocolError(
                f"SETTINGS of {len(payload)} bytes, expected a multiple of 6", ErrorCode.FRAME_SIZE_ERROR
            )
        if len(payload) > 6 * _MOST_SETTINGS:
            text = f"SETTINGS of {len(payload) // 6} settings, expected at most {_MOST_SETTINGS}"
            raise ProtocolError(text, ErrorCode.ENHANCE_YOUR_CALM)
        if flags & Flags.ACK:
            return
        for setting, value in read_settings(payload):
            match setting:
                case Setting.INITIAL_WINDOW_SIZE:
                    if value > LARGEST_WINDOW_BYTES:
                        raise ProtocolError(
                            f"INITIAL_WINDOW_SIZE of {value}, expected at most {LARGEST_WINDOW_BYTES}",
                            ErrorCode.FLOW_CONTROL_ERROR,
                        )
                    if self.stream is not None:
                        self.stream.increase_send_window(value - self.initial_send_window)
                    self.initial_send_window = value
                case Setting.MAX_FRAME_SIZE:
                    if not DEFAULT_FRAME_BYTES <= value <= LARGEST_FRAME_BYTES:
                        raise ProtocolError(f"MAX_FRAME_SIZE of {value}, expected 16384 to 16777215")
                    self.max_send_frame_bytes = value
                case Setting.ENABLE_PUSH:
                    if value > 1:
                        raise ProtocolError(f"ENABLE_PUSH of {value}, expected 0 or 1")
        self._reply(frame(FrameType.SETTINGS, Flags.ACK, 0))
        self.settings_received = True
        self.settings_received_or_closed.set()

    def _window_frame(self, stream_id: int, payload: bytes) -> None:
        self._check("WINDOW_UPDATE", stream_id, payload, 4, of_connection=None)
        increment = read_uint32(payload) & LARGEST_WINDOW_BYTES
        if not increment:
            raise ProtocolError(f"WINDOW_UPDATE of stream {stream_id}: the increment is 0")
        if stream_id:
            target = self._find_stream(stream_id, "WINDOW_UPDATE")
            if target is not None:
                target.increase_send_window(increment)
            return
        self.send_window += increment
        if self.send_window > LARGEST_WINDOW_BYTES:
            text = f"WINDOW_UPDATE: the connection's window would be above {LARGEST_WINDOW_BYTES}"
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        if self.stream is not None:
            self.stream.wake_writer()

    def _goaway_frame(self, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) < 8:
            raise ProtocolError(
                f"GOAWAY of {len(payload)} bytes for stream {stream_id}", ErrorCode.FRAME_SIZE_ERROR
            )
        code, text = read_uint32(payload, 4), payload[8:][:_PEER_TEXT_BYTES].decode(errors="replace")
        text = f": {text}" if text else ""
        self._loss_reason = f"the peer ended the connection ({error_name(code)}{' '.join(text.split())})"
        self.goaway_received(read_uint32(payload) & LARGEST_WINDOW_BYTES)

    def goaway_received(self, last_stream_id: int) -> None:
        """Handle a GOAWAY: the peer has processed no stream above this id, and accepts no new ones."""

    def _check(
        self, name: str, stream_id: int, payload: bytes, length: int, *, of_connection: bool | None
    ) -> None:
        if len(payload) != length:
            raise ProtocolError(
                f"{name} of {len(payload)} bytes, expected {length}", ErrorCode.FRAME_SIZE_ERROR
            )
        if of_connection is not None and of_connection != (stream_id == 0):
            raise ProtocolError(f"{name} of stream {stream_id}, expected stream 0")

    def _reply(self, reply: bytes) -> None:
        """Answer a frame. A peer that sends frame after frame to be answered, and reads no answer, is disconnected.

        Raises:
            ProtocolError: too many answers are unsent.
        """
        self.write_all([reply])
        if self.paused:
            self._unsent_replies += 1
            if self._unsent_replies > _MOST_UNSENT_REPLIES:
                raise ProtocolError(
                    "the peer does not read the answers to its frames", ErrorCode.ENHANCE_YOUR_CALM
                )


def headers_frames(stream_id: int, block: bytes, longest: int, *, end_stream: bool) -> list[BytesLike]:
    """Return a HEADERS frame and the CONTINUATION frames that its block needs.

    Args:
        stream_id: HTTP/2 stream id.
        block: encoded headers.
        longest: longest payload of a frame.
        end_stream: whether the stream ends with these headers.
    """
    pieces: list[BytesLike] = []
    kind, flags = FrameType.HEADERS, Flags.END_STREAM if end_stream else 0
    while True:
        piece, block = block[:longest], block[longest:]
        pieces.append(frame(kind, flags if block else flags | Flags.END_HEADERS, stream_id, piece))
        if not block:
            return pieces
        kind, flags = FrameType.CONTINUATION, 0


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the `HOST:PORT` of the far end."""
    name: Any = transport.get_extra_info("peername")
    return join_address(name[0], name[1]) if isinstance(name, tuple) else str(name or "unknown")
