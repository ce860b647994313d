"""Targets of bytes from a connection: HTTP/2 frames at both ends, one target for each type, and `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.server import ServerState

from benchmarks.harness.floods import floods, opening, request_block
from services.runtime.metrics import WorkerMetrics
from services.runtime.metrics_server import MetricsConnection, http_config
from services.transport.access.enforcement import AccessControl
from services.transport.http2.client import ClientConnection
from services.transport.http2.connection import Connection
from services.transport.http2.frames import (
    PREFACE,
    FrameType,
    frame,
    settings_frame,
    window_update_frame,
)
from services.transport.http2.headers import (
    HeaderCodec,
    metadata_of,
    response_headers,
    status_of,
    status_of_http_error,
)
from services.transport.http2.parser import FrameParser
from services.transport.http2.server import ServerStream
from services.transport.security import Security
from tests.fuzz.draws import Draws
from tests.fuzz.target import Target
from tests.support.raw_http2 import (
    PATH,
    FakeTransport,
    give,
    make_connection,
    make_pending_connection,
    make_ticket,
    message,
)

MOST_ANSWER_BYTES = 200_000
LIMIT_SECONDS = 5.0
METRICS_SECONDS = 10.0
_CONFIG = http_config(WorkerMetrics().registry)
_FLAGS = (0, 0x1, 0x4, 0x5, 0x8, 0x9, 0x20, 0x2D, 0xFF)
_STREAMS = (1, 0, 3, 2, (1 << 31) - 1)
_LONG = 20_000
"""Length of a payload that needs a frame longer than the standard ones."""


class _Frames:
    """Receiver that drops all frames."""

    def frame_started(self, kind: int, length: int) -> None:
        assert length < 1 << 24

    def frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert len(payload) < 1 << 16

    def data_started(self, stream: int, length: int) -> None:
        return None

    def data_ended(self, stream: int, end_stream: bool) -> None:
        return None


def _frames(content: bytes) -> None:
    """Parse the bytes in pieces whose length is the first byte plus one."""
    parser = FrameParser(_Frames(), expect_preface=True)
    piece_bytes, position = 1 + (content[0] if content else 0), 1
    while position < len(content):
        room = parser.get_buffer()
        count = min(len(room), piece_bytes, len(content) - position)
        room[:count] = content[position : position + count]
        position += count
        parser.received(count)


def _headers(content: bytes) -> None:
    headers = HeaderCodec().decode(content)
    metadata_of(headers)
    status_of(headers)
    status_of_http_error(headers)


def _deliver(make: Callable[[], Connection], content: bytes) -> None:
    """Give a connection the bytes as received, and check that it answers little and comes to an end."""

    async def run() -> None:
        connection = make()
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        for start in range(0, len(content), 512):
            if transport.closed:
                break
            give(connection, content[start : start + 512])
            await asyncio.sleep(0)
        assert len(transport.sent) < MOST_ANSWER_BYTES + 100 * len(content)
        transport.abort()
        await connection.closed.wait()
        handler = getattr(connection, "handler", None)
        if handler is not None:
            await asyncio.wait([handler], timeout=LIMIT_SECONDS)
            assert handler.done()

    asyncio.run(run())


async def _echo_all(stream: ServerStream) -> None:
    await stream.send_initial_metadata(())
    while (got := await stream.read()) is not None:
        await stream.write(got)


def _http2_server(content: bytes) -> None:
    make = make_connection if content[:1] > b"\x7f" else make_pending_connection
    _deliver(lambda: make(_echo_all), content[1:])


def _http2_client(content: bytes) -> None:
    _deliver(lambda: ClientConnection("peer:1"), content)


def frames_of(kind: FrameType, draws: Draws) -> bytes:
    """Return frames, most of them of one type, with payloads of every form."""
    frames: list[bytes] = []
    while draws.left and len(frames) < 200:
        how = draws.byte()
        shown = kind if how & 3 else draws.pick(tuple(FrameType))
        flags = draws.pick(_FLAGS)
        stream = draws.pick(_STREAMS) if how & 64 else 1 + 2 * (len(frames) if how & 128 else 0)
        made = frame(shown, flags, stream, _payload(shown, draws))
        frames.append(made if how & 60 else made[: draws.byte()])
    return b"".join(frames)


def _payload(kind: FrameType, draws: Draws) -> bytes:
    """Return a payload: of the type's form, or any bytes."""
    how = draws.byte()
    if how < 64:
        return draws.take(how)
    if how > 250:
        return draws.take(1) * _LONG
    match kind:
        case FrameType.HEADERS | FrameType.CONTINUATION | FrameType.PUSH_PROMISE:
            block = request_block(PATH) + draws.take(how % 32)
            return block[: draws.byte()] if how & 1 else block
        case FrameType.DATA:
            return message(draws.take(how % 64)) * (1 + how % 3)
        case FrameType.SETTINGS:
            pairs = range(1 + how % 40)
            return b"".join(bytes([0, draws.byte() % 9]) + (draws.take(4) + bytes(4))[:4] for _ in pairs)
        case FrameType.PING | FrameType.GOAWAY:
            return (draws.take(8) + bytes(8))[: 8 + how % 3]
        case FrameType.PRIORITY:
            return (draws.take(5) + bytes(5))[:5]
    return (draws.take(4) + bytes(4))[:4]


def _server_frames(kind: FrameType, content: bytes) -> None:
    draws = Draws(content)
    make = make_connection if draws.byte() & 1 else make_pending_connection
    start = opening(PATH) if draws.byte() & 1 else PREFACE + settings_frame({})
    _deliver(lambda: make(_echo_all), start + frames_of(kind, draws))


def _client_frames(kind: FrameType, content: bytes) -> None:
    _deliver(lambda: ClientConnection("peer:1"), settings_frame({}) + frames_of(kind, Draws(content)))


class _MetricsTransport(FakeTransport):
    """Transport with what uvicorn asks for besides."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.7", 1234), "sockname": ("192.0.2.1", 9465)}.get(name, default)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def _metrics(content: bytes) -> None:
    async def run() -> None:
        state = ServerState()
        state.default_headers = [(b"connection", b"close")]
        connection = MetricsConnection(
            _CONFIG, state, AccessControl(Security()), make_ticket(), METRICS_SECONDS
        )
        transport = _MetricsTransport(connection)
        connection.connection_made(transport)
        for start in range(0, len(content), 256):
            if transport.closed:
                break
            connection.data_received(content[start : start + 256])
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert bytes(transport.sent).count(b"HTTP/1.1 200") <= 1
        transport.abort()
        await asyncio.sleep(0)

    asyncio.run(run())


_FRAME_SEEDS = (
    bytes([1, 1]) + bytes([71, 0, 1, 200, 9, 9, 9, 9]) * 4,
    bytes([0, 1]) + bytes([7, 2, 130, 1, 2, 3, 4, 5, 6, 7, 8]) * 3,
)
"""Frames on stream 0, and on stream 1."""


def _frame_targets() -> dict[str, Target]:
    """Return a target for each frame type: what a server gets from strangers, and a client from its server."""
    targets = {}
    for kind in FrameType:
        name = kind.name.lower().replace("_", "-")
        server, client = partial(_server_frames, kind), partial(_client_frames, kind)
        targets[f"server.{name}"] = Target(server, _FRAME_SEEDS, before_authentication=True)
        targets[f"client.{name}"] = Target(client, tuple(each[2:] for each in _FRAME_SEEDS))
    return targets


CONNECTION_TARGETS = {
    "http2_server": Target(
        _http2_server,
        tuple(
            first + opening(PATH) + frames
            for first in (b"\0", b"\xff")
            for frames in (b"", *floods(2, PATH).values())
        ),
        before_authentication=True,
    ),
    "http2_client": Target(
        _http2_client, tuple(settings_frame({}) + frames for frames in floods(2, PATH).values())
    ),
    "frames": Target(
        _frames,
        (b"\x05" + PREFACE + settings_frame({}) + window_update_frame(0, 9),),
        before_authentication=True,
    ),
    "headers": Target(
        _headers,
        (HeaderCodec().encode(response_headers((("key", "value"),))), b"\x00" + b"\xff" * 300),
        before_authentication=True,
    ),
    "metrics": Target(
        _metrics,
        (
            b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            b"HEAD / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nPOSa\rT\r\n",
            b"GET / HTTP/1.0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        ),
        before_authentication=True,
    ),
    **_frame_targets(),
}
"""Targets of connections by name."""
