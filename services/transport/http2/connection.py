"""One HTTP/2 connection that carries one gRPC stream, on asyncio: what client and server have in common.

The event loop alone touches it. Nothing that a peer sends makes it hold more than a stream's window, a message and
some small frames.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, cast

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
    read_number,
    read_settings,
    settings_frame,
    window_update_frame,
)
from services.transport.http2.headers import HEADER_LIST_BYTES, HeaderCodec, Headers
from services.transport.http2.parser import CONTROL_FRAME_BYTES, FrameParser, Sink
from services.transport.http2.stream import WINDOW_BYTES, Part, Stream
from services.transport.limits import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS
from services.transport.security import join_address

log = logging.getLogger("tiermesh")

LINGER_SECONDS = 5.0
"""A peer gets so long to take the last frames and to close; then the connection is cut."""

_TLS_BUFFER_BYTES = 64 * 1024
_MOST_UNSENT_REPLIES = 1000
_MOST_CONTINUATIONS = 64
_SCRATCH_BYTES = 64 * 1024
_PEER_TEXT_BYTES = 200


class Connection(asyncio.BufferedProtocol, ABC):
    """The rules of HTTP/2; a subclass says what headers mean.

    Args:
        peer: for people, until the connection is made.
        settings: to announce beside those of both sides.
        expect_preface: whether the peer is the client.

    Attributes:
        peer: its address, for people.
        send_window: bytes that the peer takes now, on all streams.
        peer_window: what a new stream may send at first.
        peer_frame_bytes: longest frame that the peer takes.
        paused: whether the transport holds bytes that it could not send yet.
        stream: that it carries, once there is one.
        last_number: highest number of a stream that the peer opened.
        spoke: whether the peer's settings have come: it speaks HTTP/2.
        settled: set when it spoke, or the connection is over.
        closed: set when the connection is over.
    """

    def __init__(self, peer: str, settings: dict[Setting, int], *, expect_preface: bool) -> None:
        self.peer = peer
        self.send_window = DEFAULT_WINDOW_BYTES
        self.peer_window = DEFAULT_WINDOW_BYTES
        self.peer_frame_bytes = DEFAULT_FRAME_BYTES
        self.paused = False
        self.stream: Stream | None = None
        self.last_number = 0
        self.codec = HeaderCodec()
        self.spoke = False
        self.settled = asyncio.Event()
        self.closed = asyncio.Event()
        self._settings = settings
        self._parser = FrameParser(self, expect_preface=expect_preface)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._receive_window = LARGEST_WINDOW_BYTES
        self._block = bytearray()
        self._block_frames = 0
        self._block_ends_stream = False
        self._unsent_replies = 0
        self._scratch: bytearray | None = None  # set once what comes is of no interest any more
        self._goaway = ""
        self._heard_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Announce settings: windows and frames so large that our own ends never wait for them."""
        self._transport = cast(asyncio.Transport, transport)
        self._limits = _TLS_BUFFER_BYTES if transport.get_extra_info("ssl_object") else 0
        self._transport.set_write_buffer_limits(high=self._limits)
        self._announce()
        self._heard_seconds = self._loop.time()
        self._watch(KEEPALIVE_SECONDS)

    def _announce(self) -> None:
        settings = {
            **self._settings,
            Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            Setting.MAX_FRAME_SIZE: LARGEST_FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        }
        more = LARGEST_WINDOW_BYTES - DEFAULT_WINDOW_BYTES
        self.write_all([settings_frame(settings), window_update_frame(0, more)])

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport is to receive."""
        return memoryview(self._scratch) if self._scratch is not None else self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come there."""
        self._heard_seconds = self._loop.time()
        if self._scratch is not None:
            return
        try:
            self._parser.received(nbytes)
        except ProtocolError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The peer sends no more: the transport closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
        self.paused = False
        self.gone(f"{self.peer}: {self._why_lost(exc)}")
        self.settled.set()
        self.closed.set()

    def pause_writing(self) -> None:
        """The transport holds bytes that the network doesn't take yet."""
        self.paused = True

    def resume_writing(self) -> None:
        """It has sent them."""
        self.paused = False
        self._unsent_replies = 0
        if self.stream is not None:
            self.stream.writable()

    def write_all(self, pieces: list[Part]) -> None:
        """Hand pieces to the transport, in order; none is copied but by TLS."""
        if self._scratch is not None or self._transport.is_closing():
            return
        self._transport.writelines(pieces)
        if not self.paused and self._transport.get_write_buffer_size() > self._limits:
            # Some Pythons' writelines forgets to say that it holds bytes; this says it.
            self._transport.set_write_buffer_limits(high=self._limits)

    # ---- its end ----

    @abstractmethod
    def gone(self, why: str) -> None:
        """The connection is of no use any more, for this reason: tell the stream."""

    def finish(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Say goodbye, let the peer take what was sent, then close."""
        if self._scratch is not None or self._transport.is_closing():
            return
        self.write_all([goaway_frame(self.last_number, code, text)])
        # To close with bytes unread would reset the connection, and the peer might never see the last frames.
        self._scratch = bytearray(_SCRATCH_BYTES)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        # Over TLS the peer closes first: what asyncio has decrypted, and not handed on yet, is lost to it at an end.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def cut(self) -> None:
        """Close at once; what isn't sent never will be."""
        self._transport.abort()

    def close(self) -> None:
        """Close once what was written is sent, which has a limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        self._transport.close()

    def _fail(self, error: ProtocolError) -> None:
        text = f"{self.peer}: broke the rules of HTTP/2: {error}"
        log.warning("data stream of %s", text)
        self.finish(error.code, str(error))
        self.gone(text)
        self.settled.set()

    def _why_lost(self, error: Exception | None) -> str:
        if self._goaway:
            return self._goaway
        return f"the connection broke ({error})" if error else "the connection was closed"

    def _watch(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Ping a silent peer, and give one up that doesn't answer."""
        silent = self._loop.time() - self._heard_seconds
        if silent >= KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS:
            self._goaway = f"no answer to a ping within {KEEPALIVE_TIMEOUT_SECONDS:g} s"
            self._transport.abort()
        elif silent >= KEEPALIVE_SECONDS:
            self.write_all([frame(FrameType.PING, 0, 0, bytes(8))])
            self._watch(min(KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS))
        else:
            self._watch(KEEPALIVE_SECONDS - silent)

    # ---- frames ----

    def data_begins(self, stream: int, length: int) -> Sink | None:
        """A DATA frame is coming: who takes it."""
        self._receive_window -= length
        if self._receive_window < LARGEST_WINDOW_BYTES // 2:
            self.write_all([window_update_frame(0, LARGEST_WINDOW_BYTES - self._receive_window)])
            self._receive_window = LARGEST_WINDOW_BYTES
        taker = self._known(stream, "DATA")
        if taker is not None:
            taker.charge(length)
        return taker

    def data_ends(self, stream: int, end_stream: bool) -> None:
        """All of a DATA frame has come."""
        taker = self._known(stream, "DATA")
        if end_stream and taker is not None:
            taker.peer_ended()

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Any other frame."""
        match kind:
            case FrameType.HEADERS:
                self._headers_frame(flags, stream, payload)
            case FrameType.CONTINUATION:
                self._block_piece(flags, stream, payload)
            case FrameType.SETTINGS:
                self._settings_frame(flags, stream, payload)
            case FrameType.WINDOW_UPDATE:
                self._window_frame(stream, payload)
            case FrameType.PING:
                self._check("PING", stream, payload, 8, of_connection=True)
                if not flags & Flags.ACK:
                    self._reply(frame(FrameType.PING, Flags.ACK, 0, payload))
            case FrameType.RST_STREAM:
                self._check("RST_STREAM", stream, payload, 4, of_connection=False)
                taker = self._known(stream, "RST_STREAM")
                if taker is not None:
                    self.reset(read_number(payload))
            case FrameType.GOAWAY:
                self._goaway_frame(stream, payload)
            case _:
                raise ProtocolError(f"{FrameType(kind).name}: not to be sent here")

    @abstractmethod
    def headers(self, number: int, headers: Headers, end_stream: bool) -> None:
        """Headers of a stream have come."""

    @abstractmethod
    def reset(self, code: int) -> None:
        """The peer has ended the stream by RST_STREAM."""

    def _known(self, number: int, what: str) -> Stream | None:
        """The stream of that number; None: it is over and forgotten."""
        if self.stream is not None and self.stream.number == number:
            return self.stream
        if number > max(self.last_number, self.stream.number if self.stream else 0):
            raise ProtocolError(f"{what} of stream {number}, which nobody opened")
        return None

    def _headers_frame(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream:
            raise ProtocolError("HEADERS of stream 0")
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
        self._block_piece(flags, stream, payload[start : len(payload) - padding])

    def _block_piece(self, flags: int, stream: int, piece: bytes) -> None:
        self._block += piece
        self._block_frames += 1
        if len(self._block) > CONTROL_FRAME_BYTES or self._block_frames > _MOST_CONTINUATIONS:
            text = f"headers of more than {CONTROL_FRAME_BYTES} bytes or {_MOST_CONTINUATIONS} frames"
            raise ProtocolError(text, ErrorCode.ENHANCE_YOUR_CALM)
        if flags & Flags.END_HEADERS:
            headers = self.codec.decode(bytes(self._block))
            self._block.clear()
            self.headers(stream, headers, self._block_ends_stream)

    def _settings_frame(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError(f"SETTINGS of stream {stream}")
        if len(payload) % 6 or (flags & Flags.ACK and payload):
            raise ProtocolError(f"SETTINGS of {len(payload)} bytes", ErrorCode.FRAME_SIZE_ERROR)
        if flags & Flags.ACK:
            return
        for number, value in read_settings(payload):
            match number:
                case Setting.HEADER_TABLE_SIZE:
                    self.codec.limit_table(value)
                case Setting.INITIAL_WINDOW_SIZE:
                    if value > LARGEST_WINDOW_BYTES:
                        raise ProtocolError(f"INITIAL_WINDOW_SIZE of {value}", ErrorCode.FLOW_CONTROL_ERROR)
                    if self.stream is not None:
                        self.stream.granted(value - self.peer_window)
                    self.peer_window = value
                case Setting.MAX_FRAME_SIZE:
                    if not DEFAULT_FRAME_BYTES <= value <= LARGEST_FRAME_BYTES:
                        raise ProtocolError(f"MAX_FRAME_SIZE of {value}")
                    self.peer_frame_bytes = value
                case Setting.ENABLE_PUSH:
                    if value > 1:
                        raise ProtocolError(f"ENABLE_PUSH of {value}")
        self._reply(frame(FrameType.SETTINGS, Flags.ACK, 0))
        self.spoke = True
        self.settled.set()

    def _window_frame(self, stream: int, payload: bytes) -> None:
        self._check("WINDOW_UPDATE", stream, payload, 4, of_connection=None)
        increment = read_number(payload) & LARGEST_WINDOW_BYTES
        if not increment:
            raise ProtocolError(f"WINDOW_UPDATE of stream {stream} by nothing")
        if stream:
            taker = self._known(stream, "WINDOW_UPDATE")
            if taker is not None:
                taker.granted(increment)
            return
        self.send_window += increment
        if self.send_window > LARGEST_WINDOW_BYTES:
            text = f"WINDOW_UPDATE: the connection's window would be above {LARGEST_WINDOW_BYTES}"
            raise ProtocolError(text, ErrorCode.FLOW_CONTROL_ERROR)
        if self.stream is not None:
            self.stream.writable()

    def _goaway_frame(self, stream: int, payload: bytes) -> None:
        if stream or len(payload) < 8:
            raise ProtocolError(
                f"GOAWAY of {len(payload)} bytes for stream {stream}", ErrorCode.FRAME_SIZE_ERROR
            )
        code, text = read_number(payload, 4), payload[8:][:_PEER_TEXT_BYTES].decode(errors="replace")
        text = f": {text}" if text else ""
        self._goaway = f"the peer ended the connection ({error_name(code)}{' '.join(text.split())})"
        self.peer_leaves(read_number(payload) & LARGEST_WINDOW_BYTES)

    def peer_leaves(self, last_number: int) -> None:
        """GOAWAY has come: the peer has seen no stream above that number, and takes no new ones."""

    def _check(
        self, name: str, stream: int, payload: bytes, length: int, *, of_connection: bool | None
    ) -> None:
        if len(payload) != length:
            raise ProtocolError(
                f"{name} of {len(payload)} bytes, expected {length}", ErrorCode.FRAME_SIZE_ERROR
            )
        if of_connection is not None and of_connection != (stream == 0):
            raise ProtocolError(f"{name} of stream {stream}")

    def _reply(self, reply: bytes) -> None:
        """Answer a frame; a peer that asks and asks and reads no answer is cut off."""
        self.write_all([reply])
        if self.paused:
            self._unsent_replies += 1
            if self._unsent_replies > _MOST_UNSENT_REPLIES:
                raise ProtocolError(
                    "frames to be answered, and no answer is read", ErrorCode.ENHANCE_YOUR_CALM
                )


def headers_frames(number: int, block: bytes, longest: int, *, end_stream: bool) -> list[Part]:
    """HEADERS and the CONTINUATIONs it needs."""
    pieces: list[Part] = []
    kind, flags = FrameType.HEADERS, Flags.END_STREAM if end_stream else 0
    while True:
        piece, block = block[:longest], block[longest:]
        pieces.append(frame(kind, flags if block else flags | Flags.END_HEADERS, number, piece))
        if not block:
            return pieces
        kind, flags = FrameType.CONTINUATION, 0


def address_of(transport: asyncio.BaseTransport) -> str:
    """The far end's `HOST:PORT`."""
    name: Any = transport.get_extra_info("peername")
    return join_address(name[0], name[1]) if isinstance(name, tuple) else str(name or "unknown")
