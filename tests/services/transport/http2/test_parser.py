"""Frames: any cuts, padding and continuation give the same messages, and any input ends within bounds."""

from __future__ import annotations

import asyncio
import tracemalloc

from hpack import Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.transport.http2.client import ClientConnection
from services.transport.http2.connection import Connection
from services.transport.http2.frames import (
    LARGEST_FRAME_BYTES,
    PREFACE,
    ErrorCode,
    Flags,
    FrameType,
    ProtocolError,
    frame,
    frame_header,
    read_uint32,
    settings_frame,
)
from services.transport.http2.headers import response_headers
from services.transport.http2.parser import FrameParser
from services.transport.http2.server import ServerConnection, ServerStream
from services.transport.http2.stream import WINDOW_BYTES
from services.transport.limits import MESSAGE_LIMIT_BYTES
from tests.support.raw_http2 import (
    OPENING,
    PATH,
    FakeTransport,
    data_frame,
    frames_in,
    give,
    headers_frame,
    make_connection,
    message,
    request,
    within,
)

FUZZ_BYTES = WINDOW_BYTES + 2 * MESSAGE_LIMIT_BYTES
"""Most memory that a peer's bytes may cost."""


async def _collected(sent: bytes, piece_bytes: int) -> tuple[list[bytes], bool, FakeTransport]:
    """Return the messages that a handler reads from a client's bytes, whether it saw their end, and the transport."""
    got: list[bytes] = []
    ended = asyncio.Event()

    async def handler(stream: ServerStream) -> None:
        while (each := await stream.read()) is not None:
            got.append(bytes(each))
        ended.set()

    connection = make_connection(handler)
    transport = FakeTransport(connection)
    connection.connection_made(transport)
    give(connection, sent, piece_bytes)
    for _ in range(10):
        await asyncio.sleep(0)
    was_ended = ended.is_set()
    transport.abort()
    connection.connection_lost(None)
    if connection.handler is not None:
        await asyncio.wait([connection.handler])
    return got, was_ended, transport


def _padded(payload: bytes, padding: int, flags: int = 0) -> bytes:
    return data_frame(bytes([padding]) + payload + bytes(padding), flags | Flags.PADDED)


contents = st.lists(st.one_of(st.binary(max_size=300), st.integers(15000, 70000).map(bytes)), max_size=4)


@settings(deadline=None, max_examples=60)
@given(
    contents, st.lists(st.integers(1, 40000), min_size=1), st.integers(1, 70000), st.booleans(), st.booleans()
)
@example([b""], [1], 1, True, True)
def test_messages_arrive_for_any_cuts_of_frames_and_bytes(
    wanted: list[bytes], cuts: list[int], piece_bytes: int, padded: bool, huffman: bool
) -> None:
    payload, turn = b"".join(map(message, wanted)), 0
    smallest = 1 + len(payload) // 1000  # else the frames would be too many for their payload
    sent = [PREFACE, settings_frame({}), headers_frame(request(), huffman=huffman)]
    while payload:
        count = max(cuts[turn % len(cuts)], smallest)
        turn += 1
        piece, payload = payload[:count], payload[count:]
        sent.append(_padded(piece, count % 256) if padded and turn % 2 else data_frame(piece))
        if turn % 3 == 0:
            sent.append(frame(0xFA, 0xFF, 7, b"of an unknown type"))
    sent.append(_padded(b"", 9, Flags.END_STREAM) if padded else data_frame(b"", Flags.END_STREAM))
    whole = b"".join(sent)
    # A message of 70000 bytes takes too long in pieces of one byte.
    got, ended, _ = asyncio.run(_collected(whole, max(piece_bytes, len(whole) // 200)))
    assert got == wanted
    assert ended


def test_headers_may_come_in_pieces_with_padding_and_priority() -> None:
    block = Encoder().encode(request(PATH, ("a-key", "v" * 3000)))
    first = frame(
        FrameType.HEADERS, Flags.PADDED | Flags.PRIORITY, 1, bytes([3]) + bytes(5) + block[:10] + bytes(3)
    )
    rest = [frame(FrameType.CONTINUATION, 0, 1, block[10:20]), frame(FrameType.CONTINUATION, 0, 1)]
    last = frame(FrameType.CONTINUATION, Flags.END_HEADERS, 1, block[20:])
    sent = b"".join([PREFACE, settings_frame({}), first, *rest, last, data_frame(message(b"hello"))])
    for piece_bytes in (1, 7, 1 << 16):
        got, _, _ = asyncio.run(_collected(sent, piece_bytes))
        assert got == [b"hello"]


def _goaway(sent: bytes) -> tuple[int, str]:
    """Return code and text of the GOAWAY that a client gets for these bytes."""
    _, _, transport = asyncio.run(_collected(sent, 1 << 16))
    last = [each for each in frames_in(transport.sent) if each[0] == FrameType.GOAWAY]
    assert last, frames_in(transport.sent)
    return read_uint32(last[0][3], 4), last[0][3][8:].decode()


def test_the_goaway_names_the_broken_rule() -> None:
    hello = PREFACE + settings_frame({})
    bad: dict[bytes, tuple[ErrorCode, str]] = {
        b"GET / HTTP/1.1\r\nHost: tests\r\n\r\n": (ErrorCode.PROTOCOL_ERROR, "preface"),
        b"\x16\x03\x01\x02\x00\x01": (ErrorCode.PROTOCOL_ERROR, "preface"),
        PREFACE + frame(FrameType.PING, 0, 0, bytes(8)): (ErrorCode.PROTOCOL_ERROR, "PING came first"),
        PREFACE + frame(FrameType.SETTINGS, Flags.ACK, 0): (ErrorCode.PROTOCOL_ERROR, "expected SETTINGS"),
        hello + frame(FrameType.SETTINGS, 0, 0, b"12345"): (ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of 5 bytes"),
        hello + frame(FrameType.SETTINGS, 0, 3): (ErrorCode.PROTOCOL_ERROR, "SETTINGS of stream 3"),
        hello + frame(FrameType.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"): (ErrorCode.FLOW_CONTROL_ERROR, "WINDOW"),
        hello + frame(FrameType.SETTINGS, 0, 0, b"\0\5\0\0\0\1"): (ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE of 1"),
        hello + frame(FrameType.PING, 0, 0, bytes(7)): (ErrorCode.FRAME_SIZE_ERROR, "PING of 7"),
        hello + frame(FrameType.PING, 0, 1, bytes(8)): (ErrorCode.PROTOCOL_ERROR, "PING of stream 1"),
        hello + frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(4)): (ErrorCode.PROTOCOL_ERROR, "increment"),
        hello + frame(FrameType.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"): (ErrorCode.FLOW_CONTROL_ERROR, "above"),
        hello + frame(FrameType.WINDOW_UPDATE, 0, 5, b"\0\0\0\1"): (ErrorCode.PROTOCOL_ERROR, "never opened"),
        hello + data_frame(b"x"): (ErrorCode.PROTOCOL_ERROR, "DATA of stream 1"),
        hello + frame(FrameType.DATA, 0, 0, b"x"): (ErrorCode.PROTOCOL_ERROR, "DATA of stream 0"),
        hello + frame(FrameType.RST_STREAM, 0, 1, bytes(4)): (ErrorCode.PROTOCOL_ERROR, "never opened"),
        hello + frame(FrameType.PUSH_PROMISE, 0, 1, bytes(4)): (ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE"),
        hello + frame(FrameType.CONTINUATION, 0, 1): (ErrorCode.PROTOCOL_ERROR, "no headers to continue"),
        hello + frame(FrameType.HEADERS, 0, 1) + data_frame(b""): (ErrorCode.PROTOCOL_ERROR, "expected the CONTIN"),
        hello + frame(FrameType.HEADERS, 0, 1) + frame(FrameType.CONTINUATION, 0, 1) * 99: (
            ErrorCode.ENHANCE_YOUR_CALM, "headers of more than",
        ),
        hello + frame(FrameType.HEADERS, Flags.END_HEADERS, 2): (ErrorCode.PROTOCOL_ERROR, "HEADERS of stream 2"),
        hello + frame(FrameType.HEADERS, Flags.PADDED, 1, b"\x09abc"): (ErrorCode.PROTOCOL_ERROR, "padding"),
        hello + frame_header(FrameType.GOAWAY, 0, 0, 1 << 20): (ErrorCode.ENHANCE_YOUR_CALM, "GOAWAY of 1048576"),
        OPENING + frame_header(FrameType.DATA, 0, 1, LARGEST_FRAME_BYTES): (
            ErrorCode.FLOW_CONTROL_ERROR, "more than stream 1 may take",
        ),
        OPENING + data_frame(b"\x09a", Flags.PADDED): (ErrorCode.PROTOCOL_ERROR, "padding"),
        OPENING + data_frame(b"", Flags.PADDED): (ErrorCode.FRAME_SIZE_ERROR, "DATA: padded"),
        OPENING + data_frame(b"\0\0", Flags.END_STREAM): (ErrorCode.PROTOCOL_ERROR, "ended within a message"),
        OPENING + data_frame(b"", Flags.END_STREAM) + data_frame(b""): (ErrorCode.STREAM_CLOSED, "after the end"),
        OPENING + headers_frame(request()): (ErrorCode.PROTOCOL_ERROR, "in the middle"),
    }  # fmt: skip
    for sent, (code, text) in bad.items():
        got = _goaway(sent)
        assert got[0] == code, (sent[-40:], got)
        assert text in got[1], (sent[-40:], got)
        assert "\n" not in got[1]


def test_a_second_stream_is_refused_and_the_first_continues() -> None:
    second = frame(FrameType.HEADERS, Flags.END_HEADERS, 3, Encoder().encode(request()))
    sent = (
        OPENING
        + second
        + frame(FrameType.WINDOW_UPDATE, 0, 3, b"\0\0\0\1")
        + data_frame(message(b"still here"))
    )
    got, _, transport = asyncio.run(_collected(sent, 1 << 16))
    assert got == [b"still here"]
    assert (FrameType.RST_STREAM, 0, 3, b"\0\0\0\x07") in frames_in(transport.sent)


SEEDS = [
    OPENING,
    OPENING + data_frame(message(b"hello")) + data_frame(message(bytes(20000))),
    OPENING + _padded(message(b"hello"), 30) + frame(FrameType.PING, 0, 0, bytes(8)),
    OPENING
    + frame(FrameType.WINDOW_UPDATE, 0, 1, b"\0\0\xff\xff")
    + frame(FrameType.RST_STREAM, 0, 1, bytes(4)),
    OPENING
    + data_frame(message(b"last"), Flags.END_STREAM)
    + frame(FrameType.GOAWAY, 0, 0, bytes(8) + b"bye"),
]
answers = [
    settings_frame({}) + headers_frame(response_headers(())) + data_frame(message(b"hello")),
    settings_frame({}) + headers_frame([*response_headers(()), ("grpc-status", "7")], flags=Flags.END_STREAM),
    settings_frame({}) + frame(FrameType.GOAWAY, 0, 0, bytes(8) + b"no more") + data_frame(b""),
]


def mutations(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for seeds with bytes changed, inserted, deleted or cut off."""

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(seeds)))
        for _ in range(draw(st.integers(1, 6))):
            position = draw(st.integers(0, max(0, len(data) - 1)))
            match draw(st.integers(0, 3)):
                case 0:
                    data[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
                case 1:
                    data[position:position] = draw(st.binary(max_size=20))
                case 2:
                    del data[position : position + draw(st.integers(1, 20))]
                case 3:
                    del data[position:]
        return bytes(data)

    return mutate()


def _survives(make: type[Connection] | None, sent: bytes) -> None:
    """Check that a peer's bytes cause no error, no hang and bounded memory, and that a client's stream has an end."""

    async def run() -> None:
        async def handler(stream: ServerStream) -> None:
            while (each := await stream.read()) is not None:
                await stream.write(each)

        connection = make_connection(handler) if make is None else ClientConnection("peer:1")
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        give(connection, sent)
        for _ in range(20):
            await asyncio.sleep(0)
        transport.abort()
        await within(connection.closed.wait())
        if isinstance(connection, ServerConnection) and connection.handler is not None:
            await within(asyncio.wait([connection.handler]))
        if isinstance(connection, ClientConnection):
            assert connection.stream.end_reason
            assert "\n" not in connection.stream.end_reason

    tracemalloc.start()
    try:
        asyncio.run(run())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < FUZZ_BYTES


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=500), st.binary(max_size=500).map(OPENING.__add__), mutations(SEEDS)))
def test_a_server_survives_any_bytes(sent: bytes) -> None:
    _survives(None, sent)


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(st.binary(max_size=500), st.binary(max_size=500).map(answers[0].__add__), mutations(answers))
)
def test_a_client_survives_any_bytes(sent: bytes) -> None:
    _survives(ClientConnection, sent)


class _Recorder:
    """Receiver that records frames. It offers memory of its own for DATA while any is left."""

    def __init__(self, direct: bool) -> None:
        self.events: list[tuple[object, ...]] = []
        self._data = bytearray()
        self._memory = memoryview(bytearray(1 << 20)) if direct else memoryview(b"")
        self._filled = 0

    def frame_started(self, kind: int, length: int) -> None:
        self.events.append(("started", kind, length))

    def frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.events.append((kind, flags, stream, payload))

    def data_started(self, stream: int, length: int) -> _Recorder | None:
        self.events.append(("data", stream, length))
        return self if stream % 2 else None

    def data_ended(self, stream: int, end_stream: bool) -> None:
        self.events.append(("end", stream, end_stream, bytes(self._data)))
        self._data.clear()

    def receive_buffer(self) -> memoryview | None:
        return self._memory[self._filled :] or None

    def advance(self, count: int) -> None:
        self._data += self._memory[self._filled : self._filled + count]
        self._filled += count

    def feed(self, piece: memoryview) -> None:
        self._data += piece


def _parsed(sent: bytes, cuts: list[int], direct: bool) -> list[tuple[object, ...]]:
    """Return the frames parsed from bytes that come in pieces of these lengths, repeatedly."""
    recorder = _Recorder(direct)
    parser = FrameParser(recorder, expect_preface=True)
    position = turn = 0
    try:
        while position < len(sent):
            room = parser.get_buffer()
            count = min(len(room), cuts[turn % len(cuts)], len(sent) - position)
            room[:count] = sent[position : position + count]
            position, turn = position + count, turn + 1
            parser.received(count)
    except ProtocolError as error:
        assert str(error).isprintable()
        recorder.events.append((str(error), error.code))
    return recorder.events


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map((PREFACE + settings_frame({})).__add__),
        mutations([*SEEDS, OPENING + data_frame(bytes(40_000)) + _padded(b"x" * 20_000, 255)]),
    ),
    st.lists(st.integers(1, 50) | st.integers(1, 40_000), min_size=1, max_size=5),
    st.booleans(),
)
def test_frames_do_not_depend_on_cuts(sent: bytes, cuts: list[int], direct: bool) -> None:
    assert _parsed(sent, cuts, direct) == _parsed(sent, [1 << 20], False)
