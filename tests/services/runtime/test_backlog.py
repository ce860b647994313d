"""What waits for another thread: no more than may, and whoever waits for room gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.runtime.backlog import Backlog

LIMIT_SECONDS = 30
MOST = 4


def run(scenario: Callable[[Backlog], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(Backlog(MOST)), LIMIT_SECONDS)

    asyncio.run(limited())


async def turns() -> None:
    """Whatever can happen on the event loop now happens."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_there_is_room_until_as_many_wait_as_may() -> None:
    async def scenario(backlog: Backlog) -> None:
        for _ in range(MOST):
            await backlog.wait_for_room()
            backlog.add()
        waits = asyncio.ensure_future(backlog.wait_for_room())
        await turns()
        assert not waits.done()
        await asyncio.to_thread(backlog.remove)
        await turns()
        assert not waits.done(), "not for one alone: each wakes the event loop"
        await asyncio.to_thread(backlog.remove)
        await waits

    run(scenario)


def test_of_many_that_waited_no_more_give_than_there_is_room_for() -> None:
    async def scenario(backlog: Backlog) -> None:
        given = 0

        async def giver() -> None:
            nonlocal given
            await backlog.wait_for_room()
            backlog.add()
            given += 1

        givers = [asyncio.ensure_future(giver()) for _ in range(3 * MOST)]
        await turns()
        assert given == MOST
        for taken in range(1, 3 * MOST + 1):
            await asyncio.to_thread(backlog.remove)
            await turns()
            assert given - taken <= MOST
        await asyncio.gather(*givers)

    run(scenario)


def test_what_is_taken_back_makes_room() -> None:
    async def scenario(backlog: Backlog) -> None:
        for _ in range(MOST):
            backlog.add()
        waits = asyncio.ensure_future(backlog.wait_for_room())
        await turns()
        for _ in range(MOST // 2):
            assert not waits.done()
            backlog.cancel()
        await waits

    run(scenario)
