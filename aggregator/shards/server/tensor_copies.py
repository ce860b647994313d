"""Copies of a shard's arrays for checkpoints: made on the kernel thread, read by the aggregator over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from numpy.typing import NDArray

from aggregator.shards.array_pieces import make_piece
from protos import plane_pb2 as pb
from services.instrumentation.failpoints import hit_failpoint
from services.tensors.layout import CHUNK_ELEMENTS


class TensorCopies:
    """Copies that wait for their readers; neither the kernel thread nor the event loop blocks on a reader.

    The aggregator asks for one copy at a time. So an unread copy is dropped when a newer one is made.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._copies: dict[int, asyncio.Future[dict[str, NDArray[Any]]]] = {}
        self._closed = False

    def make(self, copy: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays, on the kernel thread.

        Args:
            copy: number of the copy; each is higher than the one before.
            arrays: arrays by their names on the wire.
        """
        result: dict[str, NDArray[Any]] | MemoryError
        try:
            result = {name: array.copy() for name, array in arrays.items()}
            hit_failpoint("shard.copied")
        except MemoryError as error:
            result = error
        self._loop.call_soon_threadsafe(self._add, copy, result)

    def _add(self, copy: int, result: dict[str, NDArray[Any]] | MemoryError) -> None:
        if self._closed:
            return
        for older in [each for each in self._copies if each < copy]:
            self._copies.pop(older).cancel()
        future = self._future(copy)
        if future.done():
            return  # its reader was cancelled
        if isinstance(result, MemoryError):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def read(self, copy: int) -> AsyncIterator[pb.ArrayPiece]:
        """Wait for a copy, yield its pieces, and drop it.

        Raises:
            MemoryError: there was not enough memory for the copy.
        """
        try:
            arrays = await self._future(copy)
            for name, array in arrays.items():
                for offset in range(0, array.size, CHUNK_ELEMENTS):
                    yield await asyncio.to_thread(
                        make_piece, name, array, offset, offset=offset, elements=array.size
                    )
                    hit_failpoint("shard.read.mid")
        finally:
            self._copies.pop(copy, None)

    def close(self) -> None:
        """Drop all copies and cancel their readers."""
        self._closed = True
        for each in self._copies.values():
            each.cancel()
        self._copies.clear()

    def _future(self, copy: int) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._copies.setdefault(copy, self._loop.create_future())
