"""The receiving half of an HTTP/2 connection, without I/O: from bytes to frames.

DATA payloads are not collected in frames. `FrameParser.get_buffer` returns the memory of the message itself while a
large DATA frame is received, so that the kernel's copy is the only one. Else it returns a small buffer.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from services.transport.http2.frames import (
    FRAME_HEADER_BYTES,
    PREFACE,
    ErrorCode,
    Flags,
    FrameType,
    ProtocolError,
    read_frame_header,
)

CONTROL_FRAME_BYTES = 16 * 1024
"""Longest payload of a frame other than DATA."""

_BUFFER_BYTES = FRAME_HEADER_BYTES + CONTROL_FRAME_BYTES
_PRIORITY_BYTES = 5
_DIRECT_BYTES = 16 * 1024
"""Smallest remainder of a frame that is received into its message directly; a smaller one is cheaper to copy."""


class DataSink(Protocol):
    """Receiver of the bytes of a stream's DATA."""

    def receive_buffer(self) -> memoryview | None:
        """Return memory to receive into, or None if the next bytes must go through `feed`."""

    def advance(self, count: int) -> None:
        """Note that `count` bytes were received into the memory from `receive_buffer`."""

    def feed(self, piece: memoryview) -> None:
        """Copy bytes that were received elsewhere; they are valid during the call only."""


class FrameReceiver(Protocol):
    """Receiver of frames. Every method may raise ProtocolError."""

    def frame_started(self, kind: int, length: int) -> None:
        """Receive type and payload length of each frame, also of those that are skipped."""

    def frame_received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Receive a frame of a known type other than DATA."""

    def data_started(self, stream_id: int, length: int) -> DataSink | None:
        """Return the sink for a DATA frame whose header has come, or None to drop its payload.

        Args:
            stream_id: HTTP/2 stream id.
            length: payload length, padding included.
        """

    def data_ended(self, stream_id: int, end_stream: bool) -> None:
        """Receive the end of a DATA frame."""


class _State(Enum):
    PREFACE = auto()
    HEADER = auto()
    CONTROL = auto()
    PAD_LENGTH = auto()
    DATA = auto()
    SKIP = auto()


class FrameParser:
    """Parser of the bytes that one peer sends.

    Args:
        receiver: receiver of the frames.
        expect_preface: whether the peer is a client, which sends the preface first.
    """

    def __init__(self, receiver: FrameReceiver, *, expect_preface: bool) -> None:
        self._receiver = receiver
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._stop = 0  # of the unparsed bytes in the buffer
        self._state = _State.PREFACE if expect_preface else _State.HEADER
        self._kind = self._flags = self._stream_id = 0
        self._left = 0  # bytes of the frame, without its padding, still to come
        self._padding = 0
        self._sink: DataSink | None = None
        self._direct: memoryview | None = None
        self._header_block_stream_id = 0  # the stream whose CONTINUATION must come next
        self._first = True

    def get_buffer(self) -> memoryview:
        """Return memory to receive into; it is never empty."""
        self._direct = self._direct_buffer()
        if self._direct is not None:
            return self._direct
        held = self._stop - self._start
        if self._start:
            self._buffer[:held] = bytes(self._buffer[self._start : self._stop])
            self._start, self._stop = 0, held
        return self._buffer[held:]

    def release(self) -> None:
        """Free the buffer, as nothing more will be received. Otherwise it lives until the garbage collector runs."""
        self._buffer = memoryview(b"")

    def received(self, count: int) -> None:
        """Parse `count` bytes that were received into the memory from `get_buffer`.

        Raises:
            ProtocolError: the peer broke the rules of HTTP/2.
        """
        if self._direct is not None:
            assert self._sink is not None
            self._direct = None
            self._left -= count
            self._sink.advance(count)
            if not self._left:
                self._end_data()
                self._parse()
            return
        self._stop += count
        self._parse()

    def _direct_buffer(self) -> memoryview | None:
        if self._state is not _State.DATA or self._sink is None or self._left < _DIRECT_BYTES:
            return None
        room = self._sink.receive_buffer()
        if room is None or len(room) < _DIRECT_BYTES:
            return None
        return room[: self._left]

    def _parse(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Parse the next part of the buffer; return False if more bytes must come first."""
        held = self._stop - self._start
        match self._state:
            case _State.HEADER:
                if held < FRAME_HEADER_BYTES:
                    return False
                self._begin(self._take(FRAME_HEADER_BYTES))
            case _State.DATA | _State.SKIP:
                piece = self._take(min(held, self._left))
                self._left -= len(piece)
                if self._state is _State.DATA and self._sink is not None and piece:
                    self._sink.feed(piece)
                if self._left:
                    return False
                if self._state is _State.DATA:
                    self._end_data()
                else:
                    self._state = _State.HEADER
            case _State.CONTROL:
                if held < self._left:
                    return False
                payload = bytes(self._take(self._left))
                self._state = _State.HEADER
                self._receiver.frame_received(self._kind, self._flags, self._stream_id, payload)
            case _State.PAD_LENGTH:
                if not held:
                    return False
                self._padding = self._take(1)[0]
                self._left -= 1 + self._padding
                if self._left < 0:
                    raise ProtocolError(f"DATA: {self._padding} bytes of padding in a shorter frame")
                self._state = _State.DATA
            case _State.PREFACE:
                if bytes(self._buffer[self._start : self._stop][: len(PREFACE)]) != PREFACE[:held]:
                    raise ProtocolError(
                        "the connection does not start with HTTP/2's preface; check that the peer is a gRPC "
                        "client and uses TLS as this server does"
                    )
                if held < len(PREFACE):
                    return False
                self._take(len(PREFACE))
                self._state = _State.HEADER
        return True

    def _take(self, count: int) -> memoryview:
        start, self._start = self._start, self._start + count
        return self._buffer[start : self._start]

    def _begin(self, header: memoryview) -> None:
        self._kind, self._flags, self._stream_id, self._left = read_frame_header(header)
        kind, flags, stream_id, length = self._kind, self._flags, self._stream_id, self._left
        if self._first and (kind != FrameType.SETTINGS or flags & Flags.ACK):
            raise ProtocolError(f"{_name(kind)} came first, expected SETTINGS; does the peer speak HTTP/2?")
        self._first = False
        expected = self._header_block_stream_id
        if expected and (kind != FrameType.CONTINUATION or stream_id != expected):
            raise ProtocolError(
                f"{_name(kind)} of stream {stream_id}: expected the CONTINUATION of stream {expected}"
            )
        if not expected and kind == FrameType.CONTINUATION:
            raise ProtocolError(f"{_name(kind)} of stream {stream_id}: no headers to continue")
        skipped = kind not in FrameType._value2member_map_ or kind == FrameType.PRIORITY
        if length > CONTROL_FRAME_BYTES and kind != FrameType.DATA and not skipped:
            text = f"{_name(kind)} of {length} bytes: longer than the {CONTROL_FRAME_BYTES} that are taken"
            raise ProtocolError(text, ErrorCode.ENHANCE_YOUR_CALM)
        if kind == FrameType.PRIORITY and length != _PRIORITY_BYTES:
            text = f"PRIORITY of {length} bytes, expected {_PRIORITY_BYTES}"
            raise ProtocolError(text, ErrorCode.FRAME_SIZE_ERROR)
        self._receiver.frame_started(kind, length)
        if kind == FrameType.DATA:
            if not stream_id:
                raise ProtocolError("DATA of stream 0, expected a stream above 0")
            if flags & Flags.PADDED and not length:
                raise ProtocolError("DATA: padded, but without a padding length", ErrorCode.FRAME_SIZE_ERROR)
            self._padding = 0
            self._sink = self._receiver.data_started(stream_id, length)
            self._state = _State.PAD_LENGTH if flags & Flags.PADDED else _State.DATA
        elif skipped:
            self._state = _State.SKIP
        else:
            self._state = _State.CONTROL
            if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
                self._header_block_stream_id = 0 if flags & Flags.END_HEADERS else stream_id

    def _end_data(self) -> None:
        if self._padding:
            self._state, self._left, self._padding, self._sink = _State.DATA, self._padding, 0, None
            return
        self._state, self._sink = _State.HEADER, None
        self._receiver.data_ended(self._stream_id, bool(self._flags & Flags.END_STREAM))


def _name(kind: int) -> str:
    return FrameType(kind).name if kind in FrameType._value2member_map_ else f"frame of kind {kind}"
