"""Tests of the queue from other threads to the event loop."""

from __future__ import annotations

import asyncio
import threading

from services.runtime.handover import Handover

LIMIT_SECONDS = 30
ITEMS = 20_000


def test_all_items_arrive_in_order() -> None:
    async def run() -> None:
        taken: list[int] = []
        done = asyncio.Event()

        def take(item: int) -> None:
            taken.append(item)
            if len(taken) == ITEMS:
                done.set()

        handover = Handover(take)
        thread = threading.Thread(target=lambda: [handover.put(item) for item in range(ITEMS)])
        thread.start()
        await asyncio.wait_for(done.wait(), LIMIT_SECONDS)
        thread.join()
        assert taken == list(range(ITEMS))

    asyncio.run(run())


def test_loop_is_woken_once_for_all_waiting_items() -> None:
    async def run() -> None:
        taken: list[int] = []
        handover = Handover(taken.append)
        turns = 0
        real = asyncio.get_running_loop().call_soon_threadsafe

        def counted(*arguments: object) -> object:
            nonlocal turns
            turns += 1
            return real(*arguments)  # type: ignore[arg-type]

        asyncio.get_running_loop().call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        for item in range(100):
            handover.put(item)
        assert not taken, "items are taken by the loop, not by put"
        await asyncio.sleep(0)
        assert taken == list(range(100))
        handover.put(100)
        await asyncio.sleep(0)
        assert (taken[-1], turns) == (100, 2)

    asyncio.run(run())
