"""The newest weights, ready to be sent: as gRPC messages for remote peers, in shared memory for peers on this host.

A chunk is stored once, when it is new, in the forms that the peers of that moment need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

import numpy as np

from plane.streams.shared_memory_link import TensorLink
from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed
from services.tensors.chunk_messages import (
    Message,
    TensorChunk,
    bytes_per_element,
    copy_with_checksum,
    cut_piece,
    describe_float16_overflow,
    deserialize_chunk,
    pack_chunk,
    serialize_chunk,
    serialize_in_parts,
)
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count
from services.tensors.shared_memory import SharedArray
from services.tensors.stripes import Stripe

log = logging.getLogger("tiermesh")


def version_mark(header: ChunkHeader) -> int:
    """Return the mark of a version's chunks in a job's shared array; it is unique per (generation, step)."""
    return int((header.generation << 40) + header.step + 1)


@dataclass(frozen=True)
class StoredChunk:
    """A chunk of weights in at least one form.

    Attributes:
        header: header of the chunk.
        message: serialized message for remote peers.
        array: shared array that has the payload, for peers on this host.
    """

    header: ChunkHeader
    message: Message | None
    array: SharedArray | None


@dataclass
class _JobWeights:
    """The newest chunks of one job's weights by index, and the shared array that has them.

    Attributes:
        array: array for peers on this host; None before the first chunk for them, or if there is no memory for it.
        array_size: elements, and bytes per element, that the array was made or tried for.
    """

    stored: dict[int, StoredChunk] = field(default_factory=dict)
    array: SharedArray | None = None
    array_size: tuple[int, int] | None = None


class NewestWeights:
    """The newest chunks of weights of each job, by index. One thread at a time stores chunks; another sends them.

    Memory: for each job one model copy in the wire type if there are remote peers, and one if there are peers on this
    host.

    Args:
        stripe: the shard's part of the layout, if it has only a part. Element counts are then those of the stripe.

    Attributes:
        links: tensor links that weights are sent on.
    """

    def __init__(self, stripe: Stripe | None = None) -> None:
        self._stripe_count = stripe.count if stripe is not None else 1
        self.links: list[TensorLink] = []
        self._jobs: dict[str, _JobWeights] = {}

    def clear(self, job: str) -> None:
        """Drop all chunks of a job at its end."""
        self._jobs.pop(job, None)

    def put(self, version: ChunkHeader, index: int, values: Float32Array, elements: int) -> None:
        """Store a chunk of new weights.

        Args:
            version: header with the fields that all chunks of the version share.
            index: index of the chunk.
            values: [elements of the chunk] float32; not needed after the call.
            elements: elements of the whole layout.

        Raises:
            Failed: the wire type can't represent the values.
        """
        weights = self._weights_of(version.job)
        array, for_network = self._forms_needed(weights, version, elements)
        message = None
        if array is not None:
            array.mark(index, 0)
            chunk = pack_chunk(version, index, values, array.place(index))
            array.mark(index, version_mark(version))
        if for_network:
            chunk = pack_chunk(version, index, values)
            message = serialize_chunk(chunk)
        text = describe_float16_overflow(chunk)
        if text:
            raise Failed(f"weights: {text}")
        weights.stored[index] = StoredChunk(chunk.header, message, array)

    def put_received(self, chunk: TensorChunk, message: Message | None, elements: int) -> None:
        """Store a chunk that another role sent, with its payload unchanged.

        Args:
            chunk: the chunk.
            message: message in which it came; None if it came through shared memory.
            elements: elements of the whole layout.
        """
        header = chunk.header
        weights = self._weights_of(header.job)
        array, for_network = self._forms_needed(weights, header, elements)
        if array is not None:
            array.mark(header.index, 0)
            array.place(header.index)[:] = np.frombuffer(chunk.payload, np.uint8)
            array.mark(header.index, version_mark(header))
        kept = (message or serialize_chunk(chunk)) if for_network else None
        weights.stored[header.index] = StoredChunk(header, kept, array)

    def _weights_of(self, job: str) -> _JobWeights:
        return self._jobs.setdefault(job, _JobWeights())

    def _forms_needed(
        self, weights: _JobWeights, header: ChunkHeader, elements: int
    ) -> tuple[SharedArray | None, bool]:
        """Return the array for peers on this host, if there are any, and whether a message is needed."""
        sharing = [link.shares for link in self.links]
        array = self._shared_array(weights, header, elements) if any(sharing) else None
        return array, array is None or not all(sharing)

    def _shared_array(self, weights: _JobWeights, header: ChunkHeader, elements: int) -> SharedArray | None:
        """Return the job's shared array, or None if there is no memory for it; all peers then get messages."""
        size = bytes_per_element(header.dtype)
        if weights.array_size != (elements, size):
            weights.array_size = (elements, size)
            try:
                weights.array = SharedArray(elements * size, CHUNK_ELEMENTS * size, self._stripe_count)
            except OSError as error:
                weights.array = None
                log.warning("weights go over gRPC: shared memory can't be created (%s)", error)
        return weights.array

    def _find(self, header: ChunkHeader) -> StoredChunk | None:
        """Return the stored chunk of a header's job and index, of whatever version."""
        weights = self._jobs.get(header.job)
        return None if weights is None else weights.stored.get(header.index)

    def has_version(self, header: ChunkHeader) -> bool:
        """Return whether the stored chunk of this job and index has the version in the header."""
        stored = self._find(header)
        return stored is not None and _version(stored.header) == _version(header)

    def is_last(self, index: int, elements: int) -> bool:
        """Return whether no later chunk of a layout with `elements` elements would be stored here."""
        return index + self._stripe_count >= chunk_count(elements)

    def drop_message(self, header: ChunkHeader) -> None:
        """Drop the chunk of a header's job and index if it is stored as a message only."""
        stored = self._find(header)
        if stored is not None and stored.array is None:
            self._jobs[header.job].stored.pop(header.index, None)

    async def send(
        self, link: TensorLink, wanted: Sequence[ChunkHeader], write: Callable[..., Awaitable[None]]
    ) -> None:
        """Send the current versions of chunks; chunks that their job's end has dropped are left out.

        Args:
            link: tensor link of the peer.
            wanted: headers that say which elements of which chunks to send.
            write: sends one message, which may come in parts.
        """
        found = ((each, self._find(each)) for each in wanted)
        waiting = [(each, stored) for each, stored in found if stored is not None]
        while waiting:
            run = _find_referable(waiting) if link.shares else []
            if run:
                await write(_refer(link, waiting[0][0], run))
            else:
                await self._send_message(*waiting[0], write)
            waiting = waiting[len(run) or 1 :]

    async def _send_message(
        self, wanted: ChunkHeader, stored: StoredChunk, write: Callable[..., Awaitable[None]]
    ) -> None:
        """Send the wanted elements of a chunk: the stored message, if they are all."""
        message = stored.message or await self._message_of(wanted)
        if message is None:
            return
        if not _is_piece(wanted, stored):
            await write(message)
            return
        piece = await asyncio.to_thread(cut_piece, deserialize_chunk(message), wanted.offset, wanted.elements)
        await write(*serialize_in_parts(piece))

    async def _message_of(self, wanted: ChunkHeader) -> Message | None:
        """Return a message for remote peers of a chunk that was stored for peers on this host only."""
        while True:
            stored = self._find(wanted)
            if stored is None or stored.message is not None:
                return stored.message if stored is not None else None
            message = await asyncio.to_thread(_message, stored)
            if message is not None:
                if self._find(wanted) is stored:
                    self._jobs[wanted.job].stored[wanted.index] = replace(stored, message=message)
                return message


def _message(stored: StoredChunk) -> bytes | None:
    """Return the message of a chunk in shared memory, or None if a newer one is overwriting it."""
    assert stored.array is not None
    header = ChunkHeader()
    header.CopyFrom(stored.header)
    payload = stored.array.place(header.index).tobytes()
    if not stored.array.is_marked(header.index, version_mark(header)):
        return None
    return serialize_chunk(copy_with_checksum(TensorChunk(header, payload)))


def _find_referable(waiting: Sequence[tuple[ChunkHeader, StoredChunk]]) -> list[StoredChunk]:
    """Return the chunks that one message can refer to: the first, or whole ones of its version and array from there."""
    wanted, first = waiting[0]
    if first.array is None or _is_piece(wanted, first):
        return [] if first.array is None else [first]
    whole = takewhile(lambda each: not _is_piece(*each), waiting)
    return list(takewhile(partial(_same_version, first), (stored for _, stored in whole)))


def _refer(link: TensorLink, wanted: ChunkHeader, run: Sequence[StoredChunk]) -> Message:
    """Return a message that refers to chunks in shared memory, or to the wanted piece of the only one."""
    header, array = run[0].header, run[0].array
    assert array is not None
    positions = []
    if _is_piece(wanted, run[0]):
        start = array.start(header.index) // bytes_per_element(header.dtype)
        positions = [start + wanted.offset - header.offset]
        header = _with_elements(header, wanted)
    return link.refer(header, array, version_mark(header), [each.header.index for each in run], positions)


def _is_piece(wanted: ChunkHeader, stored: StoredChunk) -> bool:
    return wanted.elements != stored.header.elements


def _with_elements(header: ChunkHeader, wanted: ChunkHeader) -> ChunkHeader:
    """Return a copy of a header that describes the wanted elements."""
    piece = ChunkHeader()
    piece.CopyFrom(header)
    piece.offset, piece.elements = wanted.offset, wanted.elements
    return piece


def _same_version(chunk: StoredChunk, other: StoredChunk) -> bool:
    return chunk.array is other.array and _version(chunk.header) == _version(other.header)


def _version(header: ChunkHeader) -> tuple[str, int, int, int]:
    return header.job, header.epoch, header.generation, header.step
