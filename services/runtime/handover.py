"""Hands things from another thread to the event loop: as many as have come by then in one turn of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Handover(Generic[Item]):
    """A queue whose items are taken on the event loop, in order.

    Waking the loop costs more than a chunk's bookkeeping: while it has not come to the items there are, it is not woken
    for more.

    Args:
        take: called on the event loop with each item.
    """

    def __init__(self, take: Callable[[Item], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._woken = False

    def put(self, item: Item) -> None:
        """Hand an item over; on any thread."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take_all)

    def _take_all(self) -> None:
        self._woken = False  # first: what is put from now on may be missed below
        while self._items:
            self._take(self._items.popleft())
