"""Parsers of bytes or text from outside. Each target takes any bytes and refuses bad ones in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from uvicorn.server import ServerState

from aggregator.shards.array_pieces import read_piece
from benchmarks.harness.floods import floods, opening
from protos import cluster_pb2 as cluster
from protos import files_pb2 as files
from protos import jobs_pb2 as jobs
from protos import shards_pb2 as shards
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.config.job import JobConfig
from services.errors import TiermeshError
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.runtime.metrics import WorkerMetrics
from services.runtime.metrics_server import MetricsConnection, http_config
from services.tensors.chunk_messages import check_chunk, deserialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.access.enforcement import AccessControl
from services.transport.http2.client import ClientConnection
from services.transport.http2.connection import Connection
from services.transport.http2.frames import PREFACE, ProtocolError, settings_frame, window_update_frame
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
from tests.support.raw_http2 import (
    PATH,
    FakeTransport,
    give,
    make_connection,
    make_pending_connection,
    make_ticket,
)

REFUSALS = (TiermeshError, ChecksumMismatch, ProtocolError, ValueError)
ENVELOPES = (
    cluster.WorkerMessage,
    cluster.WorkerCommand,
    cluster.OptimizerMessage,
    cluster.OptimizerCommand,
    shards.ShardOrders,
    shards.ShardReports,
)
LONGEST_REFUSAL = 5000
MOST_ANSWER_BYTES = 200_000
LIMIT_SECONDS = 5.0
METRICS_SECONDS = 10.0
SERVICES = [
    service
    for file in (cluster.DESCRIPTOR, files.DESCRIPTOR, jobs.DESCRIPTOR, shards.DESCRIPTOR)
    for service in file.services_by_name.values()
]
REQUEST_METHODS = [
    method for service in SERVICES for method in service.methods if method.name not in ("Attend", "Exchange")
]
"""Methods whose requests are parsed by themselves; `envelope` parses those of Attend, `chunk` those of Exchange."""
_CONFIG = http_config(WorkerMetrics().registry)


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Attributes:
        parse: function that parses bytes, or raises one of `REFUSALS`.
        seeds: valid inputs to start from.
        before_authentication: whether a peer reaches it before it has shown who it is.
    """

    parse: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    before_authentication: bool = False

    def run(self, content: bytes) -> None:
        """Parse the bytes.

        Raises:
            AssertionError: a refusal is not one short line.
        """
        try:
            self.parse(content)
        except REFUSALS as refused:
            text = str(refused)
            assert text.isprintable() and 0 < len(text) < LONGEST_REFUSAL, text


def _chunk(content: bytes) -> None:
    check_chunk(deserialize_chunk(content), 3 * CHUNK_ELEMENTS, FLOAT32)


def _envelope(content: bytes) -> None:
    decode_with_checksum(ENVELOPES[content[0] % len(ENVELOPES) if content else 0], content[1:])


def _piece(content: bytes) -> None:
    try:
        piece = shards.ArrayPiece.FromString(content)
    except DecodeError:
        return  # the service that reads pieces refuses it
    read_piece(piece)


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


def _http2_server(content: bytes) -> None:
    async def echo_all(stream: ServerStream) -> None:
        await stream.send_initial_metadata(())
        while (got := await stream.read()) is not None:
            await stream.write(got)

    make = make_connection if content[:1] > b"\x7f" else make_pending_connection
    _deliver(lambda: make(echo_all), content[1:])


def _http2_client(content: bytes) -> None:
    _deliver(lambda: ClientConnection("peer:1"), content)


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


def _request(content: bytes) -> None:
    """Parse a request of the RPC that the first byte chooses, as its server does, and look at what it says."""
    method = REQUEST_METHODS[content[0] % len(REQUEST_METHODS) if content else 0]
    try:
        request = GetMessageClass(method.input_type).FromString(content[1:])
    except DecodeError:
        return  # `RequestParsingHandler` refuses it
    if isinstance(request, jobs.SubmitRequest):
        JobConfig.from_json(request.spec_json)


def _job(content: bytes) -> None:
    JobConfig.from_json(content.decode(errors="replace"))


def _layout(content: bytes) -> None:
    Layout.loads(content.decode(errors="replace"))


TARGETS: dict[str, Target] = {
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
    "request": Target(
        _request,
        tuple(
            bytes([number]) + GetMessageClass(method.input_type)().SerializeToString()
            for number, method in enumerate(REQUEST_METHODS)
        )
        + tuple(
            bytes([number]) + jobs.SubmitRequest(spec_json='{"name": "n"}').SerializeToString()
            for number, method in enumerate(REQUEST_METHODS)
            if method.name == "Submit"
        ),
        before_authentication=True,
    ),
    "chunk": Target(
        _chunk,
        (
            b"\x0a"
            + bytes([len(encode_with_checksum(ChunkHeader(job="j")))])
            + encode_with_checksum(ChunkHeader(job="j")),
        ),
    ),
    "envelope": Target(
        _envelope,
        tuple(bytes([number]) + encode_with_checksum(kind(epoch=3)) for number, kind in enumerate(ENVELOPES)),
    ),
    "frames": Target(
        _frames,
        (b"\x05" + PREFACE + settings_frame({}) + window_update_frame(0, 9),),
        before_authentication=True,
    ),
    "headers": Target(
        _headers, (HeaderCodec().encode(response_headers((("key", "value"),))),), before_authentication=True
    ),
    "job": Target(_job, (b'{"name": "n", "steps": 3}',)),
    "layout": Target(_layout, (Layout.build([("w", (2, 3), True, "w", False)]).dumps().encode(),)),
    "piece": Target(
        _piece, (shards.ArrayPiece(array="weights", dtype="float32", data=bytes(8)).SerializeToString(),)
    ),
}
