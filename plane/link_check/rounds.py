"""Rounds of a link check: tensors whose values both ends know, sent as the chunks of a job are sent.

A stream of `MeasureLink` is a stream of `Exchange` in all that costs time: ports, HTTP/2, chunks, checksums, shared
memory. It carries rounds instead of a job's steps, so no core knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from plane.streams.data_streams import write_message
from plane.streams.shared_memory_link import TensorLink
from protos.tensors_pb2 import FLOAT32, KNOWN_VALUES, Chunk, ChunkHeader, LinkRound
from services.errors import Refused
from services.tensors.chunk_messages import Message, TensorChunk, check_chunk, pack_chunk, serialize_in_parts
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range
from services.tensors.shared_memory import SharedArray
from services.transport.links import LinkClosed

MAX_ELEMENTS = 1 << 26
"""Largest number of elements of a round's tensor: 256 MiB."""
MAX_SHARED_ELEMENTS = 1 << 23
"""Largest number of elements of a tensor in shared memory, which takes that much memory at its sender: 32 MiB."""
ELEMENT_BYTES = 4
"""Bytes per element, which is float32."""

_SHIFTS = 1 << 10
"""Chunks after which the values repeat. They differ from chunk to chunk, so that a wrong place shows."""
_LARGEST_VALUE = 1 << 22
"""Bound of the values, which are whole: a sum of two is exact in float32."""
_BATCH_CHUNKS = 4
"""Chunks that a thread prepares at once, as a worker's sender does."""
_ROUND_TAG = b"\x12"  # field 2 of Chunk, length-delimited

Values = Callable[[int, int], Float32Array]
"""Returns a chunk's values, given its index and its number of elements."""


@cache
def _all_values(salt: int) -> Float32Array:
    numbers = np.arange(CHUNK_ELEMENTS + _SHIFTS, dtype=np.uint64) + np.uint64(salt << 32)
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    values = (mixed % np.uint64(_LARGEST_VALUE)).astype(np.float32)
    values.flags.writeable = False
    return values


def client_values(index: int, elements: int) -> Float32Array:
    """Return the values of a chunk of the client's tensor, [elements] float32."""
    return _all_values(1)[index % _SHIFTS :][:elements]


def server_values(index: int, elements: int) -> Float32Array:
    """Return the values of a chunk of the server's tensor, [elements] float32."""
    return _all_values(2)[index % _SHIFTS :][:elements]


def summed_values(index: int, elements: int) -> Float32Array:
    """Return the sum of both ends' values of a chunk, [elements] float32."""
    return client_values(index, elements) + server_values(index, elements)


class WrongValues(Refused):
    """Values that differ from those that were sent, although their checksum is right."""


class RoundStream:
    """One end of a stream of rounds.

    Args:
        stream: the call, at either end.
        link: moves payloads in messages or through shared memory.
    """

    def __init__(self, stream: Any, link: TensorLink) -> None:
        self._stream = stream
        self._link = link
        self._array: SharedArray | None = None
        self._array_elements = 0
        self._mark = 0

    async def send_round(self, link_round: LinkRound) -> None:
        """Send the message that begins or ends a round."""
        await write_message(self._stream, Chunk(round=link_round).SerializeToString())

    async def next_round(self) -> LinkRound | None:
        """Return the next round; None if the peer has ended the stream.

        Raises:
            Refused: the message is something else.
        """
        message = await self._stream.read()
        return _parse_round(message) if isinstance(message, Message) else None

    async def send_values(self, elements: int, values: Values) -> None:
        """Send a tensor.

        Args:
            elements: its number of elements.
            values: the values of its chunks.
        """
        array = await asyncio.to_thread(self._shared_array, elements)
        self._mark += 1
        chunks = range(chunk_count(elements)) if elements else range(0)
        for start in chunks[::_BATCH_CHUNKS]:
            batch = chunks[start : start + _BATCH_CHUNKS]
            for parts in await asyncio.to_thread(self._make_messages, batch, elements, values, array):
                await write_message(self._stream, *parts)

    async def receive_values(self, elements: int, take: Callable[[TensorChunk], None]) -> None:
        """Receive a tensor.

        Args:
            elements: its number of elements.
            take: takes each chunk, in order and intact, on another thread.

        Raises:
            Refused: a chunk is damaged or not the next one.
            LinkClosed: the peer has ended the stream.
        """
        arrived, count = 0, chunk_count(elements) if elements else 0
        while arrived < count:
            message = await self._stream.read()
            if not isinstance(message, Message):
                raise LinkClosed(f"the peer ended the stream after {arrived} of {count} chunks of a round")
            arrived += await asyncio.to_thread(self._take, message, arrived, elements, take)

    def _take(self, message: Message, first: int, elements: int, take: Callable[[TensorChunk], None]) -> int:
        chunks = self._link.deserialize(message)
        for index, chunk in enumerate(chunks, first):
            check_chunk(chunk, elements, FLOAT32)
            if chunk.header.index != index or chunk.header.kind != KNOWN_VALUES:
                raise Refused(
                    f"chunk {chunk.header.index} of kind {chunk.header.kind}: expected chunk {index} of kind "
                    f"{KNOWN_VALUES}; run the same version of Tiermesh at both ends"
                )
            take(chunk)
        return len(chunks)

    def _make_messages(
        self, indices: range, elements: int, values: Values, array: SharedArray | None
    ) -> list[tuple[Message, ...]]:
        """Return messages with some chunks: one that refers to all of them, if the peer sees their memory."""
        chunks = []
        for index in indices:
            start, stop = chunk_range(elements, index)
            header = ChunkHeader(kind=KNOWN_VALUES, dtype=FLOAT32)
            if array is not None:
                array.mark(index, 0)
            place = array.place(index) if array is not None else None
            chunks.append(pack_chunk(header, index, values(index, stop - start), place))
            if array is not None:
                array.mark(index, self._mark)
        if array is None:
            return [serialize_in_parts(chunk) for chunk in chunks]
        return [(self._link.refer(chunks[0].header, array, self._mark, indices),)]

    def _shared_array(self, elements: int) -> SharedArray | None:
        """Return the array of a tensor that the peer can read in place; None if it travels in messages."""
        if not self._link.shares or not 0 < elements <= MAX_SHARED_ELEMENTS:
            return None
        if self._array is None or self._array_elements != elements:
            self._array_elements = elements
            self._array = SharedArray(elements * ELEMENT_BYTES, CHUNK_ELEMENTS * ELEMENT_BYTES)
        return self._array


def compare(values: Values, chunk: TensorChunk) -> None:
    """Check a chunk's values to the bit.

    Raises:
        WrongValues: one is wrong.
    """
    header = chunk.header
    got, expected = chunk.values(), values(header.index, header.elements)
    differs = got.view(np.uint32) != expected.view(np.uint32)
    if differs.any():
        place = int(differs.argmax())
        raise WrongValues(
            f"{int(differs.sum())} of {header.elements} values of chunk {header.index} are wrong, first at "
            f"{place}: {got[place]:.9g}, expected {expected[place]:.9g}"
        )


def _parse_round(message: Message) -> LinkRound:
    if message[:1] != _ROUND_TAG:
        raise Refused(f"a message of {len(message)} bytes: expected the beginning or the end of a round")
    try:
        found = Chunk.FromString(bytes(message)).round
    except DecodeError:
        raise Refused(f"a message of {len(message)} bytes: is no Chunk; the connection damages it") from None
    most = max(found.up_elements, found.down_elements)
    if most > MAX_ELEMENTS:
        raise Refused(f"a round of {most} elements: expected at most {MAX_ELEMENTS}")
    if found.add and not found.up_elements == found.down_elements <= CHUNK_ELEMENTS:
        raise Refused(
            f"a sum of {found.up_elements} and {found.down_elements} elements: expected the same number, at most "
            f"{CHUNK_ELEMENTS}"
        )
    return found
