"""Copies of a plane's arrays for checkpoints: what an unread copy, missing memory and a closed plane do."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from plane.tensor_copies import TensorCopies

LIMIT_SECONDS = 30


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_SECONDS))


def test_an_unread_copy_is_dropped_when_the_next_is_made() -> None:
    async def scenario() -> None:
        copies = TensorCopies()
        loop = asyncio.get_running_loop()
        array = np.zeros(2, np.float32)
        await loop.run_in_executor(None, copies.make, 1, {"weights": array})
        array[:] = 1.0
        await loop.run_in_executor(None, copies.make, 2, {"weights": array})
        array[:] = 2.0
        (later,) = [piece async for piece in copies.read(2)]
        assert np.frombuffer(later.data, np.float32).tolist() == [1.0, 1.0], (
            "the values at the time of the copy"
        )
        assert not copies._copies, "the first copy is dropped"

    run(scenario())


def test_a_reader_learns_of_missing_memory() -> None:
    class Large:
        def copy(self) -> Any:
            raise MemoryError("no room")

    async def scenario() -> None:
        copies = TensorCopies()
        arrays: Any = {"weights": Large()}
        await asyncio.get_running_loop().run_in_executor(None, copies.make, 1, arrays)
        with pytest.raises(MemoryError, match="no room"):
            [piece async for piece in copies.read(1)]

    run(scenario())


def test_a_waiting_reader_is_cancelled_on_close() -> None:
    async def scenario() -> None:
        copies = TensorCopies()
        reader = asyncio.ensure_future(anext(copies.read(1)))
        await asyncio.sleep(0)
        copies.close()
        with pytest.raises(asyncio.CancelledError):
            await reader

    run(scenario())


def test_readers_that_leave_before_the_copy_is_made_leave_nothing() -> None:
    async def scenario() -> None:
        copies = TensorCopies()
        for copy in range(100):
            reader = asyncio.ensure_future(anext(copies.read(copy)))
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        assert not copies._copies

    run(scenario())
