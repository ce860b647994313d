"""Count of items that wait for another thread, by which a producer on the event loop is held back."""

from __future__ import annotations

import asyncio


class Backlog:
    """Bounded count of waiting items. The event loop adds items; one other thread removes them.

    Args:
        max_waiting: maximum number of waiting items.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._loop = asyncio.get_running_loop()
        # Each counter has one writing thread, so neither needs a lock.
        self._added = self._removed = 0
        self._crowded = False  # asks the other thread to signal when there is room
        self._room = asyncio.Event()

    def add(self, count: int = 1) -> None:
        """Count more waiting items. Call it on the event loop."""
        self._added += count

    def cancel(self, count: int = 1) -> None:
        """Count items less that the other thread will not take. Call it on the event loop."""
        self._added -= count
        if self._waiting <= self._max_waiting // 2:
            self._room.set()

    def remove(self, count: int = 1) -> None:
        """Count items less. Call it on the other thread."""
        self._removed += count
        if self._crowded and self._waiting <= self._max_waiting // 2:
            self._crowded = False
            self._loop.call_soon_threadsafe(self._room.set)

    async def wait_for_room(self) -> None:
        """Wait until there is room for an item. The caller must add the item without awaiting anything in between."""
        while self._waiting >= self._max_waiting:
            self._room.clear()
            self._crowded = True
            if (
                self._waiting >= self._max_waiting
            ):  # checked again: from here on the other thread sees `_crowded`
                await self._room.wait()

    @property
    def _waiting(self) -> int:
        return self._added - self._removed
