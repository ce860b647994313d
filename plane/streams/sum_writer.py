"""Messages with pieces of a lease's sum: rounded to the wire type, and copied or left in shared memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from plane.lease_sums import LeaseSum
from plane.streams.shared_memory_link import ClientTensorLink
from protos.tensors_pb2 import ChunkHeader
from services.tensors.chunk_messages import (
    Message,
    TensorChunk,
    bytes_per_element,
    describe_float16_overflow,
    pack_chunk,
    serialize_in_parts,
)
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray

log = logging.getLogger("tiermesh.worker")


class SumWriter:
    """Writer of the messages of one data stream. One thread uses it.

    Args:
        link: link to the aggregator, which moves payloads in messages or through shared memory.
    """

    def __init__(self, link: ClientTensorLink) -> None:
        self._link = link
        self._overflow_logged = ""  # job whose overflow of float16 has been logged

    def write(self, headers: Sequence[ChunkHeader], lease_sum: LeaseSum) -> list[tuple[Message, ...]]:
        """Return messages with pieces in the wire type: one for all of them if the aggregator sees their memory."""
        array = lease_sum.shared if self._link.shares else None
        chunks = []
        for header in headers:
            position, place = lease_sum.position(header.offset), None
            if array is not None:
                size = bytes_per_element(header.dtype)
                place = array.payload[position * size : (position + header.elements) * size]
            values = lease_sum.piece(header.offset, header.elements)
            chunk = pack_chunk(header, header.index, values, place)
            chunk.header.offset = header.offset
            if array is not None:
                array.mark(position // CHUNK_ELEMENTS, header.lease)
            if header.job != self._overflow_logged and (text := describe_float16_overflow(chunk)):
                self._overflow_logged = header.job  # once per job: each such step is reported as skipped
                log.warning("%s", text)
            chunks.append(chunk)
        if array is None:
            return [serialize_in_parts(chunk) for chunk in chunks]
        runs = _split_at_pieces(chunks) if lease_sum.in_row else [chunks]
        return [(self._refer(run, array, lease_sum),) for run in runs]

    def _refer(self, chunks: Sequence[TensorChunk], array: SharedArray, lease_sum: LeaseSum) -> Message:
        """Return a message that refers to chunks in shared memory."""
        headers = [chunk.header for chunk in chunks]
        first = headers[0]
        for header in headers[1:]:
            first.findings.MergeFrom(header.findings)
        positions = [lease_sum.position(each.offset) for each in headers] if lease_sum.in_row else []
        return self._link.refer(first, array, first.lease, [each.index for each in headers], positions)


def _split_at_pieces(chunks: Sequence[TensorChunk]) -> list[list[TensorChunk]]:
    """Return runs of chunks of which only the first may be a piece, since a message describes one piece at most."""
    runs: list[list[TensorChunk]] = []
    for chunk in chunks:
        if not runs or chunk.header.elements < CHUNK_ELEMENTS:
            runs.append([])
        runs[-1].append(chunk)
    return runs
