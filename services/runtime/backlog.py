"""What waits for another thread: counted, so that whoever feeds it stops while too much does."""

from __future__ import annotations

import asyncio

MAX_WAITING_CHUNKS = 8
"""Chunks that may wait for a thread: it is behind the core, whose windows move on without it."""


class Backlog:
    """Given on the event loop, taken by one other thread.

    Args:
        most: that may wait.
    """

    def __init__(self, most: int = MAX_WAITING_CHUNKS) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        # Each is counted by one thread.
        self._given = self._taken = 0
        self._crowded = False  # the other thread is to say when there is room
        self._room = asyncio.Event()

    def add(self) -> None:
        """One more waits; on the event loop."""
        self._given += 1

    def cancel(self) -> None:
        """One waits no more, though the other thread has not come to it; on the event loop."""
        self._given -= 1
        if self._waiting <= self._most // 2:
            self._room.set()

    def remove(self) -> None:
        """The other thread has come to one."""
        self._taken += 1
        if self._crowded and self._waiting <= self._most // 2:
            self._crowded = False
            self._loop.call_soon_threadsafe(self._room.set)

    async def wait_for_room(self) -> None:
        """Wait while as many wait as may; whoever gives one then must do so at once."""
        while self._waiting >= self._most:
            self._room.clear()
            self._crowded = True
            if self._waiting >= self._most:  # still: the other thread will see that it is to say so
                await self._room.wait()

    @property
    def _waiting(self) -> int:
        return self._given - self._taken
