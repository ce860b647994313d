"""Targets of single messages and texts: what roles send each other, jobs, layouts."""

from __future__ import annotations

from protos import cluster_pb2 as cluster
from protos import plane_pb2 as plane
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.config.job import JobConfig
from services.protocol.checksums import decode_with_checksum, encode_with_checksum
from services.tensors.chunk_messages import check_chunk, deserialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from tests.fuzz.target import Target

ENVELOPES = (
    cluster.WorkerMessage,
    cluster.WorkerCommand,
    cluster.OptimizerMessage,
    cluster.OptimizerCommand,
    plane.PlaneOrders,
    plane.PlaneReports,
)
"""Messages of control streams in both directions."""


def _chunk(content: bytes) -> None:
    chunk = deserialize_chunk(content)
    check_chunk(chunk, 3 * CHUNK_ELEMENTS, FLOAT32, pieces=chunk.header.lease % 2 == 1)


def _envelope(content: bytes) -> None:
    decode_with_checksum(ENVELOPES[content[0] % len(ENVELOPES) if content else 0], content[1:])


def _job(content: bytes) -> None:
    JobConfig.from_json(content.decode(errors="replace"))


def _layout(content: bytes) -> None:
    Layout.loads(content.decode(errors="replace"))


_HEADER = encode_with_checksum(ChunkHeader(job="j"))

MESSAGE_TARGETS = {
    "chunk": Target(_chunk, (b"\x0a" + bytes([len(_HEADER)]) + _HEADER,)),
    "envelope": Target(
        _envelope,
        tuple(bytes([number]) + encode_with_checksum(kind(epoch=3)) for number, kind in enumerate(ENVELOPES)),
    ),
    "job": Target(_job, (b'{"name": "n", "steps": 3}',)),
    "layout": Target(_layout, (Layout.build([("w", (2, 3), True, "w", False)]).dumps().encode(),)),
}
"""Targets of messages and texts by name."""
