"""Tests of the link to an optimizer in this process."""

from __future__ import annotations

import asyncio
from typing import Any

from aggregator.optimizer_links.local import LocalOptimizerLink

LIMIT_SECONDS = 30.0


def test_sums_wait_until_the_engine_has_room() -> None:
    class Engine:
        has_room = asyncio.Event()

        async def wait_for_room(self) -> None:
            await self.has_room.wait()

    async def scenario() -> None:
        engine: Any = Engine()
        nothing: Any = None
        room = asyncio.ensure_future(
            LocalOptimizerLink(engine, name="agg", epoch=1, callbacks=nothing).wait_for_room()
        )
        await asyncio.sleep(0)
        assert not room.done()
        engine.has_room.set()
        await room

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
