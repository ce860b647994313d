"""Tests of the bounded count of waiting items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.runtime.backlog import Backlog

LIMIT_SECONDS = 30
MAX_WAITING = 4


def run(scenario: Callable[[Backlog], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(Backlog(MAX_WAITING)), LIMIT_SECONDS)

    asyncio.run(limited())


async def run_pending_callbacks() -> None:
    """Let the event loop run everything that is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_there_is_room_up_to_the_maximum() -> None:
    async def scenario(backlog: Backlog) -> None:
        for _ in range(MAX_WAITING):
            await backlog.wait_for_room()
            backlog.add()
        waiter = asyncio.ensure_future(backlog.wait_for_room())
        await run_pending_callbacks()
        assert not waiter.done()
        await asyncio.to_thread(backlog.remove)
        await run_pending_callbacks()
        assert not waiter.done(), "half must be free, since each wake-up of the loop costs"
        await asyncio.to_thread(backlog.remove)
        await waiter

    run(scenario)


def test_waiters_add_no_more_than_there_is_room_for() -> None:
    async def scenario(backlog: Backlog) -> None:
        added = 0

        async def producer() -> None:
            nonlocal added
            await backlog.wait_for_room()
            backlog.add()
            added += 1

        producers = [asyncio.ensure_future(producer()) for _ in range(3 * MAX_WAITING)]
        await run_pending_callbacks()
        assert added == MAX_WAITING
        for removed in range(1, 3 * MAX_WAITING + 1):
            await asyncio.to_thread(backlog.remove)
            await run_pending_callbacks()
            assert added - removed <= MAX_WAITING
        await asyncio.gather(*producers)

    run(scenario)


def test_cancelled_items_make_room() -> None:
    async def scenario(backlog: Backlog) -> None:
        for _ in range(MAX_WAITING):
            backlog.add()
        waiter = asyncio.ensure_future(backlog.wait_for_room())
        await run_pending_callbacks()
        for _ in range(MAX_WAITING // 2):
            assert not waiter.done()
            backlog.cancel()
        await waiter

    run(scenario)
