"""The other end, written by hand: frames as a test wants them, over a real socket or into a connection without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hpack import Decoder, Encoder

from services.transport.http2.frames import (
    FRAME_HEADER_BYTES,
    PREFACE,
    Flags,
    FrameType,
    frame,
    read_frame_header,
    settings_frame,
)
from services.transport.http2.messages import prefix
from services.transport.http2.server import ServerStream, StreamServer
from services.transport.security import Security

LIMIT_SECONDS = 20.0
PATH = "/tests.Tests/Echo"
PLAIN = Security()

Result = TypeVar("Result")
Frame = tuple[int, int, int, bytes]


def request(path: str = PATH, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Headers of a call."""
    return [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "tests"), ("te", "trailers"),
        ("content-type", "application/grpc"), *more,
    ]  # fmt: skip


def headers_frame(headers: list[tuple[str, str]], *, huffman: bool = True, flags: int = 0) -> bytes:
    """HEADERS of stream 1, whole, by an encoder without memory."""
    return frame(FrameType.HEADERS, Flags.END_HEADERS | flags, 1, Encoder().encode(headers, huffman))


def data_frame(payload: bytes, flags: int = 0) -> bytes:
    """DATA of stream 1."""
    return frame(FrameType.DATA, flags, 1, payload)


def message(content: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return prefix(len(content)) + content


OPENING = PREFACE + settings_frame({}) + headers_frame(request())


async def within(awaitable: Awaitable[Result]) -> Result:
    """Wait, but not for ever."""
    return await asyncio.wait_for(awaitable, LIMIT_SECONDS)


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.eof = False
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 1234) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything at once."""

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


def give(protocol: Any, data: bytes, piece_bytes: int = 1 << 16) -> None:
    """As if these bytes had come over the network, at most so many at a time."""
    position = 0
    while position < len(data):
        room = protocol.get_buffer(-1)
        count = min(len(room), piece_bytes, len(data) - position)
        room[:count] = data[position : position + count]
        position += count
        protocol.buffer_updated(count)


def frames_in(sent: bytes) -> list[Frame]:
    """The whole frames that were sent: kind, flags, stream, payload."""
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
    """A client's socket, spoken to in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder()

    def send(self, *pieces: bytes) -> None:
        self._writer.writelines(pieces)

    def cut(self) -> None:
        """Break the connection."""
        self._writer.transport.abort()

    async def next_frame(self) -> Frame | None:
        """The next frame; None: the connection has ended."""
        try:
            header = await within(self._reader.readexactly(FRAME_HEADER_BYTES))
            kind, flags, stream, length = read_frame_header(memoryview(header))
            return kind, flags, stream, await within(self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def until(self, wanted: FrameType) -> Frame:
        """The next frame of that kind; others are skipped."""
        while True:
            found = await self.next_frame()
            assert found is not None, f"the connection ended before {wanted.name}"
            if found[0] == wanted:
                return found

    async def headers(self) -> dict[str, str]:
        """The next headers."""
        fields = self._decoder.decode((await self.until(FrameType.HEADERS))[3])
        return {str(field[0]): str(field[1]) for field in fields}


async def echo(stream: ServerStream) -> None:
    """Every message back."""
    while (got := await stream.read()) is not None:
        await stream.write(got)


@asynccontextmanager
async def serving(
    handler: Callable[[ServerStream], Awaitable[None]] = echo,
    security: Security = PLAIN,
    host: str = "127.0.0.1",
) -> AsyncIterator[StreamServer]:
    """A server of one method."""
    server = await StreamServer.start(f"{host}:0", security, {PATH: handler})
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def raw_peer(server: StreamServer) -> AsyncIterator[RawPeer]:
    """A client of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()
