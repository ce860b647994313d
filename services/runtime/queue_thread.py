"""A thread that handles items of a bounded queue, so that their producer never waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from services.tasks import start_thread

Item = TypeVar("Item")

_POLL_SECONDS = 0.5


class QueueThread(Generic[Item]):
    """Thread with a bounded queue. `put`, `end` and `wait` may be called from one other thread, and don't block.

    It may hang in what it calls: it does not keep the process.

    Args:
        name: name of the thread.
        handle: called on the thread with the items that have waited, in their order, and with none every half second.
        most_waiting: number of items that wait at most.
        most_at_once: number of items that `handle` takes at most.
        first: called on the thread before anything else.
        last: called on the thread after the last items.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[list[Item]], None],
        *,
        most_waiting: int,
        most_at_once: int,
        first: Callable[[], None] = lambda: None,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._most_at_once = most_at_once
        self._first, self._last = first, last
        self._items: queue.Queue[Item] = queue.Queue(most_waiting)
        self._ended = threading.Event()
        self._thread = start_thread(self._work, name)

    def put(self, item: Item) -> bool:
        """Have an item handled; return False if too many wait."""
        try:
            self._items.put_nowait(item)
        except queue.Full:
            return False
        return True

    def end(self) -> None:
        """Have the thread end after the items that wait."""
        self._ended.set()

    def wait(self, seconds: float | None) -> bool:
        """Wait until the thread has ended, at most for some seconds, or without a limit; return whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        self._first()
        while not (self._ended.is_set() and self._items.empty()):
            self._handle(self._take())
        self._last()

    def _take(self) -> list[Item]:
        """Return the items that wait; an empty list if none came for a while."""
        items: list[Item] = []
        with suppress(queue.Empty):
            items.append(self._items.get(timeout=_POLL_SECONDS))
            while len(items) < self._most_at_once:
                items.append(self._items.get_nowait())
        return items
