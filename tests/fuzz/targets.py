"""Parsers of bytes or text from outside. Each target takes any bytes and refuses bad ones in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from aggregator.shards.array_pieces import read_piece
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as shards
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.config.job import JobConfig
from services.errors import TiermeshError
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.tensors.chunk_messages import check_chunk, deserialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.http2.frames import PREFACE, ProtocolError, settings_frame, window_update_frame
from services.transport.http2.headers import (
    HeaderCodec,
    metadata_of,
    response_headers,
    status_of,
    status_of_http_error,
)
from services.transport.http2.parser import FrameParser

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


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Attributes:
        parse: function that parses bytes, or raises one of `REFUSALS`.
        seeds: valid inputs to start from.
    """

    parse: Callable[[bytes], None]
    seeds: tuple[bytes, ...]

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


def _job(content: bytes) -> None:
    JobConfig.from_json(content.decode(errors="replace"))


def _layout(content: bytes) -> None:
    Layout.loads(content.decode(errors="replace"))


TARGETS: dict[str, Target] = {
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
    "frames": Target(_frames, (b"\x05" + PREFACE + settings_frame({}) + window_update_frame(0, 9),)),
    "headers": Target(_headers, (HeaderCodec().encode(response_headers((("key", "value"),))),)),
    "job": Target(_job, (b'{"name": "n", "steps": 3}',)),
    "layout": Target(_layout, (Layout.build([("w", (2, 3), True, "w", False)]).dumps().encode(),)),
    "piece": Target(
        _piece, (shards.ArrayPiece(array="weights", dtype="float32", data=bytes(8)).SerializeToString(),)
    ),
}
