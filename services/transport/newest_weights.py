"""The newest weights as they are sent: as messages for peers over the network, in shared memory for those on this host.

A chunk is put here once, when it is new, in the forms that the peers of that moment want.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import numpy as np

from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed
from services.tensors.chunk_messages import (
    Message,
    TensorChunk,
    bytes_per_element,
    copy_with_checksum,
    describe_float16_overflow,
    pack_chunk,
    serialize_chunk,
)
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count
from services.tensors.shared_memory import SharedArray
from services.tensors.stripes import Stripe
from services.transport.shared_memory_link import TensorLink

log = logging.getLogger("tiermesh")


def version_mark(header: ChunkHeader) -> int:
    """What marks the places of a version, in an array of one job: no two versions have the same."""
    return int((header.generation << 40) + header.step + 1)


@dataclass(frozen=True)
class StoredChunk:
    """A chunk, in one form at least.

    Attributes:
        header: as it is sent.
        message: for the network.
        array: in whose place it lies, for peers on this host.
    """

    header: ChunkHeader
    message: Message | None
    array: SharedArray | None


class NewestWeights:
    """Chunks of weights by index, each of the version that was put last. Put by one thread at a time, sent by another.

    Memory: one model copy in the wire type while there are peers over the network, one while there are some on this
    host.

    Args:
        stripe: whose chunks they are, if not those of a whole layout; `elements` are then its own.

    Attributes:
        links: that weights are sent on.
    """

    def __init__(self, stripe: Stripe | None = None) -> None:
        self._stripe_count = stripe.count if stripe is not None else 1
        self.links: list[TensorLink] = []
        self._stored: dict[int, StoredChunk] = {}
        self._array: SharedArray | None = None
        self._array_of: tuple[str, int, int] = ("", 0, 0)  # job, elements, bytes of one

    def clear(self) -> None:
        """The job is over."""
        self._stored.clear()
        self._array, self._array_of = None, ("", 0, 0)

    # ---- in ----

    def put(self, version: ChunkHeader, index: int, values: Float32Array, elements: int) -> None:
        """Take a chunk of weights.

        Args:
            version: header with what all its chunks have in common.
            index: of the chunk.
            values: [elements of the chunk] float32, not needed after the call.
            elements: of the whole layout.

        Raises:
            Failed: the wire type can't hold them.
        """
        array, for_network = self._wanted(version, elements)
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

    def keep(self, chunk: TensorChunk, message: Message | None, elements: int) -> None:
        """Take a chunk that another role sent, whose payload stays as it is, and the message in which it came."""
        header = chunk.header
        array, for_network = self._wanted(header, elements)
        if array is not None:
            array.mark(header.index, 0)
            array.place(header.index)[:] = np.frombuffer(chunk.payload, np.uint8)
            array.mark(header.index, version_mark(header))
        kept = (message or serialize_chunk(chunk)) if for_network else None
        self._stored[header.index] = StoredChunk(header, kept, array)

    def _wanted(self, header: ChunkHeader, elements: int) -> tuple[SharedArray | None, bool]:
        """The array for peers on this host, if there are any, and whether a message is needed."""
        sharing = [link.shares for link in self.links]
        array = self._shared(header, elements) if any(sharing) else None
        return array, array is None or not all(sharing)

    def _shared(self, header: ChunkHeader, elements: int) -> SharedArray | None:
        """The array of a job; None: there is no memory for it, and everybody gets messages."""
        size = bytes_per_element(header.dtype)
        wanted = (header.job, elements, size)
        if self._array_of != wanted:
            self._array_of = wanted
            try:
                self._array = SharedArray(elements * size, CHUNK_ELEMENTS * size, self._stripe_count)
            except OSError as error:
                self._array = None
                log.warning("weights over gRPC: no shared memory can be made for them here (%s)", error)
        return self._array

    # ---- out ----

    def holds(self, header: ChunkHeader) -> bool:
        """Whether a chunk is here as this header names it."""
        stored = self._stored.get(header.index)
        return stored is not None and _version(stored.header) == _version(header)

    def is_last(self, index: int, elements: int) -> bool:
        """Whether no chunk of a layout of so many elements that would be put here comes after this one."""
        return index + self._stripe_count >= chunk_count(elements)

    def forget(self, index: int) -> None:
        """A chunk's message is not needed any more."""
        stored = self._stored.get(index)
        if stored is not None and stored.array is None:
            del self._stored[index]

    async def send(
        self, link: TensorLink, indices: Sequence[int], write: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Send chunks, whatever their versions are now; those that a job took with it are left out."""
        waiting = [self._stored[index] for index in indices if index in self._stored]
        while waiting:
            first = waiting[0]
            run = [first]
            if first.array is not None and link.shares:
                run = list(takewhile(partial(_alike, first), waiting))
                where = [each.header.index for each in run]
                await write(link.refer(first.header, first.array, version_mark(first.header), where))
            else:
                message = first.message or await self._message_of(first.header.index)
                if message is not None:
                    await write(message)
            waiting = waiting[len(run) :]

    async def _message_of(self, index: int) -> Message | None:
        """A message for the network of a chunk that was made for peers on this host alone."""
        while True:
            stored = self._stored.get(index)
            if stored is None or stored.message is not None:
                return stored.message if stored is not None else None
            message = await asyncio.get_running_loop().run_in_executor(None, _message, stored)
            if message is not None:
                if self._stored.get(index) is stored:
                    self._stored[index] = replace(stored, message=message)
                return message


def _message(stored: StoredChunk) -> bytes | None:
    """The message of a chunk in its place; None: it is being overwritten by a newer one."""
    assert stored.array is not None
    header = ChunkHeader()
    header.CopyFrom(stored.header)
    payload = stored.array.place(header.index).tobytes()
    if not stored.array.is_marked(header.index, version_mark(header)):
        return None
    return serialize_chunk(copy_with_checksum(TensorChunk(header, payload)))


def _alike(chunk: StoredChunk, other: StoredChunk) -> bool:
    return chunk.array is other.array and _version(chunk.header) == _version(other.header)


def _version(header: ChunkHeader) -> tuple[str, int, int, int]:
    return header.job, header.epoch, header.generation, header.step
