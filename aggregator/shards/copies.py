"""Tensors of shards for checkpoints: flat arrays in pieces of one chunk, from shards to the aggregator and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from protos import shards_pb2 as pb
from services.checkpoints import Checkpoint
from services.errors import Refused
from services.tensors.kernels import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.stripes import Stripe

WEIGHTS, STATE = "weights", "state/"
"""Names of arrays: the weights, and what comes before the name of one of the update rule's."""


def piece_of(name: str, array: NDArray[Any], offset: int) -> pb.ArrayPiece:
    """At most `CHUNK_ELEMENTS` elements of an array from `offset` on."""
    data = array[offset : offset + CHUNK_ELEMENTS].tobytes()
    return pb.ArrayPiece(
        array=name,
        dtype=array.dtype.name,
        elements=array.size,
        offset=offset,
        crc32c=google_crc32c.value(data),
        data=data,
    )


def values_of(piece: pb.ArrayPiece) -> NDArray[Any]:
    """The elements of a piece, read-only.

    Raises:
        Refused: it was damaged, or is no whole number of elements of a known type.
    """
    if piece.dtype not in ("float32", "int64") or google_crc32c.value(piece.data) != piece.crc32c:
        raise Refused(
            f"array {piece.array}, offset {piece.offset}: {len(piece.data)} bytes of {piece.dtype!r} with another "
            "crc32c than theirs; expected float32 or int64, undamaged"
        )
    dtype = np.dtype(piece.dtype)
    if len(piece.data) % dtype.itemsize:
        raise Refused(
            f"array {piece.array}, offset {piece.offset}: {len(piece.data)} bytes, no whole number of {piece.dtype}"
        )
    return np.frombuffer(piece.data, dtype)


class Copies:
    """Copies of a shard's arrays, made on its kernel thread and read on the event loop; nothing waits there.

    The optimizer asks for one after the other, so one that is there when the next is made is given up.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._made: dict[int, asyncio.Future[dict[str, NDArray[Any]]]] = {}
        self._closed = False

    def make(self, copy: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """On the kernel thread: copy."""
        made: dict[str, NDArray[Any]] | MemoryError
        try:
            made = {name: array.copy() for name, array in arrays.items()}
        except MemoryError as error:
            made = error
        self._loop.call_soon_threadsafe(self._take, copy, made)

    def _take(self, copy: int, made: dict[str, NDArray[Any]] | MemoryError) -> None:
        if self._closed:
            return
        for older in [each for each in self._made if each < copy]:
            self._made.pop(older).cancel()
        future = self._future(copy)
        if future.done():
            return  # whoever was to read it has left
        if isinstance(made, MemoryError):
            future.set_exception(made)
        else:
            future.set_result(made)

    async def read(self, copy: int) -> AsyncIterator[pb.ArrayPiece]:
        """The pieces of a copy, which is forgotten then; waits until it has been made."""
        arrays = await self._future(copy)
        try:
            for name, array in arrays.items():
                for offset in range(0, array.size, CHUNK_ELEMENTS):
                    yield await self._loop.run_in_executor(None, piece_of, name, array, offset)
        finally:
            self._made.pop(copy, None)

    def close(self) -> None:
        """Nobody reads any more: let go of copies."""
        self._closed = True
        for each in self._made.values():
            each.cancel()
        self._made.clear()

    def _future(self, copy: int) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._made.setdefault(copy, self._loop.create_future())


class Gathered:
    """Whole arrays, put together from the pieces of all shards, on any threads.

    Args:
        elements: of the layout.

    Attributes:
        weights: [elements] float32.
        state: of the update rule, by name.
    """

    def __init__(self, elements: int) -> None:
        self.weights: Float32Array = np.empty(elements, np.float32)
        self.state: dict[str, NDArray[Any]] = {}
        self._missing: dict[str, int] = {WEIGHTS: elements}
        self._lock = threading.Lock()

    def take(self, stripe: Stripe, piece: pb.ArrayPiece) -> None:
        """Put a shard's piece where it belongs.

        Raises:
            Refused: it is damaged, or belongs nowhere.
        """
        values = values_of(piece)
        with self._lock:
            self._take(stripe, piece, values)

    def _take(self, stripe: Stripe, piece: pb.ArrayPiece, values: NDArray[Any]) -> None:
        elements = self.weights.size
        name = piece.array.removeprefix(STATE)
        if values.dtype != np.float32:
            self.state[name] = values.copy()  # a counter, the same in all shards
            return
        start = stripe.whole(piece.offset // CHUNK_ELEMENTS) * CHUNK_ELEMENTS
        expected = max(0, min(CHUNK_ELEMENTS, elements - start))
        if piece.offset % CHUNK_ELEMENTS or values.size != expected:
            raise Refused(
                f"array {piece.array}, offset {piece.offset}: {values.size} elements; expected {expected}, of a chunk"
            )
        if piece.array == WEIGHTS:
            whole = self.weights
        else:
            whole = self.state.setdefault(name, np.empty(elements, np.float32))
        whole[start : start + values.size] = values
        self._missing[piece.array] = self._missing.get(piece.array, elements) - values.size

    def check(self) -> None:
        """Hold the arrays to be whole.

        Raises:
            Refused: something of one is missing, or came twice.
        """
        for name, missing in self._missing.items():
            if missing:
                raise Refused(f"array {name}: the shards gave {self.weights.size - missing} elements of it, "
                              f"expected {self.weights.size}")  # fmt: skip


def scattered(checkpoint: Checkpoint, stripe: Stripe, opening: int) -> Iterator[pb.ArrayPiece]:
    """What a checkpoint holds of a shard's chunks."""
    arrays = {f"{STATE}{name}": array for name, array in checkpoint.optimizer_state.items()}
    own = stripe.elements(checkpoint.layout.elements)
    for name, array in {WEIGHTS: checkpoint.weights, **arrays}.items():
        if array.dtype != np.float32:
            piece = piece_of(name, array, 0)
            piece.opening = opening
            yield piece
            continue
        for part, local in stripe.parts(checkpoint.layout.elements):
            piece = piece_of(name, array[part], 0)
            piece.opening, piece.offset, piece.elements = opening, local.start, own
            yield piece


def put(piece: pb.ArrayPiece, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a piece into a shard's arrays.

    Raises:
        Refused: it is damaged, or there is no such array.
    """
    values = values_of(piece)
    array = arrays.get(piece.array)
    if array is None or (array.dtype, array.size) != (values.dtype, piece.elements):
        held = ", ".join(f"{name} ({each.dtype} [{each.size}])" for name, each in arrays.items())
        raise Refused(
            f"array {piece.array} ({piece.dtype} [{piece.elements}]): this job's optimizer has {held}; give the "
            "checkpoint to the job that wrote it"
        )
    if piece.offset + values.size > array.size:
        raise Refused(
            f"array {piece.array}, offset {piece.offset}: {values.size} elements, it has {array.size}"
        )
    array[piece.offset : piece.offset + values.size] = values
