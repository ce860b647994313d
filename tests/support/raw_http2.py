"""A peer that speaks HTTP/2 frame by frame, over a real socket or into a connection without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hpack import Decoder, Encoder

from services.transport.http2.connection import STANDARD_TIMES, ConnectionTimes
from services.transport.http2.frames import (
    FRAME_HEADER_BYTES,
    PREFACE,
    Flags,
    FrameType,
    frame,
    read_frame_header,
    read_uint32,
    settings_frame,
)
from services.transport.http2.messages import prefix
from services.transport.http2.server import Handler, ServerConnection, ServerStream, StreamServer
from services.transport.ports.admission import Admission, ConnectionLimits, Ticket
from services.transport.ports.log_limit import LogLimit
from services.transport.security import Security

LIMIT_SECONDS = 20.0
PATH = "/tests.Tests/Echo"
PLAIN = Security()

Result = TypeVar("Result")
Frame = tuple[int, int, int, bytes]


def request(path: str = PATH, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a call."""
    return [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "tests"), ("te", "trailers"),
        ("content-type", "application/grpc"), *more,
    ]  # fmt: skip


def headers_frame(headers: list[tuple[str, str]], *, huffman: bool = True, flags: int = 0) -> bytes:
    """Return a HEADERS frame of stream 1, encoded without a dynamic table."""
    return frame(FrameType.HEADERS, Flags.END_HEADERS | flags, 1, Encoder().encode(headers, huffman))


def data_frame(payload: bytes, flags: int = 0) -> bytes:
    """Return a DATA frame of stream 1."""
    return frame(FrameType.DATA, flags, 1, payload)


def message(content: bytes) -> bytes:
    """Return a gRPC message with its prefix."""
    return prefix(len(content)) + content


OPENING = PREFACE + settings_frame({}) + headers_frame(request())


async def within(awaitable: Awaitable[Result]) -> Result:
    """Wait for at most `LIMIT_SECONDS`."""
    return await asyncio.wait_for(awaitable, LIMIT_SECONDS)


class FakeTransport(asyncio.Transport):
    """Transport that keeps what is written."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.eof = False
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 1234) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: everything is accepted at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


def make_connection(handler: Handler, times: ConnectionTimes = STANDARD_TIMES) -> ServerConnection:
    """Return a server's connection to a confirmed caller, without a port. It serves one method, `PATH`."""
    connection = make_pending_connection(handler, times)
    connection.confirm()
    return connection


def make_pending_connection(handler: Handler, times: ConnectionTimes = STANDARD_TIMES) -> ServerConnection:
    """Return a server's connection without a port."""
    return ServerConnection({PATH: handler}, set(), make_ticket(), LogLimit(), times)


def make_ticket() -> Ticket:
    """Return the ticket of a connection to a port of its own."""
    ticket = Admission(ConnectionLimits(), asyncio.get_running_loop().time).admit("192.0.2.7")
    assert isinstance(ticket, Ticket)
    return ticket


def give(protocol: Any, data: bytes, piece_bytes: int = 1 << 16) -> None:
    """Pass bytes to a protocol as if received, in pieces of at most `piece_bytes`."""
    position = 0
    while position < len(data):
        room = protocol.get_buffer(-1)
        count = min(len(room), piece_bytes, len(data) - position)
        room[:count] = data[position : position + count]
        position += count
        protocol.buffer_updated(count)


def frames_in(sent: bytes) -> list[Frame]:
    """Return the whole frames in these bytes: type, flags, stream id, payload."""
    found, position = [], 0
    while position + FRAME_HEADER_BYTES <= len(sent):
        kind, flags, stream, length = read_frame_header(
            memoryview(sent)[position : position + FRAME_HEADER_BYTES]
        )
        position += FRAME_HEADER_BYTES
        found.append((kind, flags, stream, bytes(sent[position : position + length])))
        position += length
    return found


class RawPeer:
    """A client that sends and receives single frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder()

    def send(self, *pieces: bytes) -> None:
        self._writer.writelines(pieces)

    def abort(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    async def next_frame(self) -> Frame | None:
        """Return the next frame, or None at the end of the connection."""
        try:
            header = await within(self._reader.readexactly(FRAME_HEADER_BYTES))
            kind, flags, stream, length = read_frame_header(memoryview(header))
            return kind, flags, stream, await within(self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def until(self, wanted: FrameType) -> Frame:
        """Return the next frame of this type, and skip others."""
        while True:
            found = await self.next_frame()
            assert found is not None, f"the connection ended before {wanted.name}"
            if found[0] == wanted:
                return found

    async def accepted(self) -> int:
        """Wait until the handler has answered, and return how many more bytes the stream may take then."""
        await self.until(FrameType.HEADERS)
        while True:
            _, _, stream, payload = await self.until(FrameType.WINDOW_UPDATE)
            if stream:
                return read_uint32(payload)

    async def headers(self) -> dict[str, str]:
        """Return the next headers."""
        fields = self._decoder.decode((await self.until(FrameType.HEADERS))[3])
        return {str(field[0]): str(field[1]) for field in fields}


async def echo(stream: ServerStream) -> None:
    """Accept the caller and send every message back."""
    await stream.send_initial_metadata(())
    while (got := await stream.read()) is not None:
        await stream.write(got)


@asynccontextmanager
async def serving(
    handler: Callable[[ServerStream], Awaitable[None]] = echo,
    security: Security = PLAIN,
    host: str = "127.0.0.1",
    times: ConnectionTimes = STANDARD_TIMES,
) -> AsyncIterator[StreamServer]:
    """Serve one method, `PATH`."""
    server = await StreamServer.start(f"{host}:0", security, {PATH: handler}, times=times)
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def raw_peer(server: StreamServer) -> AsyncIterator[RawPeer]:
    """Connect a client to a server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()
