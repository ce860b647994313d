"""The newest weights, ready to be sent: as gRPC messages for remote peers, in shared memory for peers on this host.

A chunk is stored once, when it is new, in the forms that the peers of that moment need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
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


class NewestWeights:
    """The newest chunks of weights, by index. One thread at a time stores chunks; another sends them.

    Memory: one model copy in the wire type if there are remote peers, and one if there are peers on this host.

    Args:
        stripe: the shard's part of the layout, if it has only a part. Element counts are then those of the stripe.

    Attributes:
        links: tensor links that weights are sent on.
    """

    def __init__(self, stripe: Stripe | None = None) -> None:
        self._stripe_count = stripe.count if stripe is not None else 1
        self.links: list[TensorLink] = []
        self._stored: dict[int, StoredChunk] = {}
        self._array: SharedArray | None = None
        self._array_key: tuple[str, int, int] | None = None  # job, elements, bytes per element

    def clear(self) -> None:
        """Drop all chunks at the end of the job."""
        self._stored.clear()
        self._array, self._array_key = None, None

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
        array, for_network = self._forms_needed(version, elements)
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
        self._stored[index] = StoredChunk(chunk.header, message, array)

    def put_received(self, chunk: TensorChunk, message: Message | None, elements: int) -> None:
        """Store a chunk that another role sent, with its payload unchanged.

        Args:
            chunk: the chunk.
            message: message in which it came; None if it came through shared memory.
            elements: elements of the whole layout.
        """
        header = chunk.header
        array, for_network = self._forms_needed(header, elements)
        if array is not None:
            array.mark(header.index, 0)
            array.place(header.index)[:] = np.frombuffer(chunk.payload, np.uint8)
            array.mark(header.index, version_mark(header))
        kept = (message or serialize_chunk(chunk)) if for_network else None
        self._stored[header.index] = StoredChunk(header, kept, array)

    def _forms_needed(self, header: ChunkHeader, elements: int) -> tuple[SharedArray | None, bool]:
        """Return the array for peers on this host, if there are any, and whether a message is needed."""
        sharing = [link.shares for link in self.links]
        array = self._shared_array(header, elements) if any(sharing) else None
        return array, array is None or not all(sharing)

    def _shared_array(self, header: ChunkHeader, elements: int) -> SharedArray | None:
        """Return the job's shared array, or None if there is no memory for it; all peers then get messages."""
        size = bytes_per_element(header.dtype)
        wanted = (header.job, elements, size)
        if self._array_key != wanted:
            self._array_key = wanted
            try:
                self._array = SharedArray(elements * size, CHUNK_ELEMENTS * size, self._stripe_count)
            except OSError as error:
                self._array = None
                log.warning("weights go over gRPC: shared memory can't be created (%s)", error)
        return self._array

    def has_version(self, header: ChunkHeader) -> bool:
        """Return whether the stored chunk of this index has the version in the header."""
        stored = self._stored.get(header.index)
        return stored is not None and _version(stored.header) == _version(header)

    def is_last(self, index: int, elements: int) -> bool:
        """Return whether no later chunk of a layout with `elements` elements would be stored here."""
        return index + self._stripe_count >= chunk_count(elements)

    def drop_message(self, index: int) -> None:
        """Drop a chunk that is stored as a message only."""
        stored = self._stored.get(index)
        if stored is not None and stored.array is None:
            del self._stored[index]

    async def send(
        self, link: TensorLink, wanted: Sequence[ChunkHeader], write: Callable[..., Awaitable[None]]
    ) -> None:
        """Send the current versions of chunks; chunks that a job's end has dropped are left out.

        Args:
            link: tensor link of the peer.
            wanted: headers that say which elements of which chunks to send.
            write: sends one message, which may come in parts.
        """
        found = ((each, self._stored.get(each.index)) for each in wanted)
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
        message = stored.message or await self._message_of(wanted.index)
        if message is None:
            return
        if not _is_piece(wanted, stored):
            await write(message)
            return
        chunk = deserialize_chunk(message)
        if chunk.header.job == wanted.job:  # else another job has begun
            piece = await asyncio.to_thread(cut_piece, chunk, wanted.offset, wanted.elements)
            await write(*serialize_in_parts(piece))

    async def _message_of(self, index: int) -> Message | None:
        """Return a message for remote peers of a chunk that was stored for peers on this host only."""
        while True:
            stored = self._stored.get(index)
            if stored is None or stored.message is not None:
                return stored.message if stored is not None else None
            message = await asyncio.to_thread(_message, stored)
            if message is not None:
                if self._stored.get(index) is stored:
                    self._stored[index] = replace(stored, message=message)
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
