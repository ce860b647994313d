"""Copies of a plane's arrays for checkpoints: made on the kernel thread, taken at once or read over gRPC in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from numpy.typing import NDArray

from plane.array_pieces import make_piece
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
        result: dict[str, NDArray[Any]] | Exception
        try:
            result = {name: array.copy() for name, array in arrays.items()}
            hit_failpoint("plane.copied")
        except Exception as error:  # for example, not enough memory: the reader fails, and the job goes on
            result = error
        if not self._closed:  # else the event loop may be closed too
            self._loop.call_soon_threadsafe(self._add, copy, result)

    def _add(self, copy: int, result: dict[str, NDArray[Any]] | Exception) -> None:
        if self._closed:
            return
        for older in [each for each in self._copies if each < copy]:
            self._copies.pop(older).cancel()
        future = self._future(copy)
        if future.done():
            return  # its reader was cancelled
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def take(self, copy: int) -> dict[str, NDArray[Any]]:
        """Wait for a copy, drop it here, and return it: arrays by their names.

        Raises:
            MemoryError: there was not enough memory for the copy.
        """
        try:
            return await self._future(copy)
        finally:
            self._copies.pop(copy, None)

    async def read(self, copy: int) -> AsyncIterator[pb.ArrayPiece]:
        """Take a copy and yield its pieces (MemoryError)."""
        for name, array in (await self.take(copy)).items():
            for offset in range(0, array.size, CHUNK_ELEMENTS):
                yield await asyncio.to_thread(
                    make_piece, name, array, offset, offset=offset, elements=array.size
                )
                hit_failpoint("shard.read.mid")

    def close(self) -> None:
        """Drop all copies and cancel their readers."""
        self._closed = True
        for each in self._copies.values():
            each.cancel()
        self._copies.clear()

    def _future(self, copy: int) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._copies.setdefault(copy, self._loop.create_future())
