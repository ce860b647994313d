"""Tensors of shards for checkpoints: flat arrays in pieces of one chunk, from shards to the aggregator and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from protos import shards_pb2 as pb
from services.checkpoints import Checkpoint
from services.errors import Refused
from services.instrumentation.failpoints import hit_failpoint
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count
from services.tensors.stripes import Stripe

WEIGHTS, STATE = "weights", "state/"
"""Names of arrays: the weights, and what comes before the name of one of the update rule's."""
_LONGEST_NAME = 40


class DamagedPiece(Refused):
    """A piece that is not what was sent: the same may come undamaged."""


def piece_of(
    name: str, array: NDArray[Any], start: int, *, offset: int, elements: int, opening: int = 0
) -> pb.ArrayPiece:
    """At most `CHUNK_ELEMENTS` elements of an array from `start` on, which come at `offset` of one of so many."""
    data = array[start : start + CHUNK_ELEMENTS].tobytes()
    piece = pb.ArrayPiece(
        opening=opening, array=name, dtype=array.dtype.name, elements=elements, offset=offset, data=data
    )
    piece.crc32c = _checksum(piece)
    return piece


def _checksum(piece: pb.ArrayPiece) -> int:
    """Of what a piece is, too: bits may flip there as well."""
    what = f"{piece.opening} {piece.array} {piece.dtype} {piece.elements} {piece.offset}".encode()
    checksum: int = google_crc32c.extend(google_crc32c.value(what), piece.data)
    return checksum


def values_of(piece: pb.ArrayPiece) -> NDArray[Any]:
    """The elements of a piece, read-only.

    Raises:
        DamagedPiece: its checksum is another one.
        Refused: it is no whole number of elements of a known type.
    """
    where = f"array {piece.array[:_LONGEST_NAME]!r}, offset {piece.offset}"
    if _checksum(piece) != piece.crc32c:
        raise DamagedPiece(
            f"{where}: {len(piece.data)} bytes with another crc32c than theirs: it was damaged"
        )
    if piece.dtype not in ("float32", "int64"):
        raise Refused(f"{where}: {piece.dtype[:_LONGEST_NAME]!r}, expected float32 or int64")
    dtype = np.dtype(piece.dtype)
    if len(piece.data) % dtype.itemsize:
        raise Refused(f"{where}: {len(piece.data)} bytes, no whole number of {piece.dtype}")
    return np.frombuffer(piece.data, dtype)


class TensorCopies:
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
            hit_failpoint("shard.copied")
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
                    piece = partial(piece_of, name, array, offset, offset=offset, elements=array.size)
                    yield await self._loop.run_in_executor(None, piece)
                    hit_failpoint("shard.read.mid")
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


class GatheredTensors:
    """Whole arrays, put together from the pieces of all shards, on any threads.

    Args:
        elements: of the layout.
        kinds: of the arrays of the update rule, by name: float32 over the layout, or int64 for a counter.

    Attributes:
        weights: [elements] float32.
        state: of the update rule, by name.
    """

    def __init__(self, elements: int, kinds: Mapping[str, np.dtype[Any]]) -> None:
        self.weights: Float32Array = np.empty(elements, np.float32)
        self.state: dict[str, NDArray[Any]] = {
            name: np.empty(elements if kind == np.float32 else 1, kind) for name, kind in kinds.items()
        }
        self._arrays = {WEIGHTS: self.weights, **{STATE + name: array for name, array in self.state.items()}}
        self._missing = {name: set(range(chunk_count(array.size))) for name, array in self._arrays.items()}
        self._lock = threading.Lock()

    def take(self, stripe: Stripe, piece: pb.ArrayPiece) -> None:
        """Put a shard's piece where it belongs.

        Raises:
            Refused: it is damaged, belongs nowhere, has come before, or is a counter on which shards disagree.
        """
        values = values_of(piece)
        with self._lock:
            self._take(stripe, piece, values)

    def _take(self, stripe: Stripe, piece: pb.ArrayPiece, values: NDArray[Any]) -> None:
        where = f"array {piece.array[:_LONGEST_NAME]!r}, offset {piece.offset}"
        array, missing = self._arrays.get(piece.array), self._missing.get(piece.array)
        if array is None or missing is None or array.dtype != values.dtype:
            known = ", ".join(f"{name} ({each.dtype})" for name, each in self._arrays.items())
            raise Refused(f"{where}: {values.dtype}, expected one of {known}")
        counter = values.dtype != np.float32  # the same in all shards
        chunk = 0 if counter else stripe.to_global(piece.offset // CHUNK_ELEMENTS)
        start = chunk * CHUNK_ELEMENTS
        expected = max(0, min(CHUNK_ELEMENTS, array.size - start))
        if piece.offset % CHUNK_ELEMENTS or values.size != expected:
            raise Refused(f"{where}: {values.size} elements; expected {expected}, of a chunk")
        if chunk in missing:
            missing.remove(chunk)
            array[start : start + expected] = values
        elif not counter:
            raise Refused(f"{where}: has come before")
        elif values != array:
            raise Refused(f"{where}: {values[0]} in {stripe}, {array[0]} in another shard")

    def check(self) -> None:
        """Hold the arrays to be whole.

        Raises:
            Refused: something of one is missing.
        """
        for name, missing in self._missing.items():
            if missing:
                raise Refused(
                    f"array {name}: the shards did not give {len(missing)} of its pieces, chunk {min(missing)} first"
                )


def scattered(checkpoint: Checkpoint, stripe: Stripe, opening: int) -> Iterator[pb.ArrayPiece]:
    """What a checkpoint holds of a shard's chunks."""
    arrays = {f"{STATE}{name}": array for name, array in checkpoint.optimizer_state.items()}
    own = stripe.element_count(checkpoint.layout.elements)
    for name, array in {WEIGHTS: checkpoint.weights, **arrays}.items():
        if array.dtype != np.float32:
            yield piece_of(name, array, 0, offset=0, elements=array.size, opening=opening)
            continue
        for part, local in stripe.ranges(checkpoint.layout.elements):
            yield piece_of(name, array, part.start, offset=local.start, elements=own, opening=opening)


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
