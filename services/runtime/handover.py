"""Queue from other threads to the event loop, which takes all waiting items in one turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Handover(Generic[Item]):
    """Queue whose items are taken on the event loop, in order.

    Waking the event loop costs more than the bookkeeping of a chunk. So it is woken only if it is not already due to
    take items.

    Args:
        take: callback for each item, called on the event loop.
    """

    def __init__(self, take: Callable[[Item], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._woken = False

    def put(self, item: Item) -> None:
        """Add an item. Any thread may call it."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take_all)

    def _take_all(self) -> None:
        self._woken = False  # before the loop below, which may miss items put from now on
        while self._items:
            self._take(self._items.popleft())
