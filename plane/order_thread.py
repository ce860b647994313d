"""A thread that does orders' work in sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.tasks import call_in, start_call

Result = TypeVar("Result")


class OrderThread:
    """One thread of a plane. An error of its work stops it for good.

    Args:
        pool: has the thread.
        on_failure: called on the event loop with that error.
    """

    def __init__(self, pool: ThreadPoolExecutor, on_failure: Callable[[Exception], None]) -> None:
        self._pool = pool
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._stopped = False  # set on either thread

    def start(self, work: list[Callable[[], None]]) -> None:
        """Do work in sequence; called on the event loop, which keeps no reference to it."""
        if work:
            work.reverse()
            start_call(self._pool, "orders", self._run, work)

    def _run(self, work: list[Callable[[], None]]) -> None:
        try:
            while work and not self._stopped:
                work.pop()()  # popped, so that a payload is freed as soon as its sum does not need it
        except Exception as error:  # the thread pool would swallow it
            if not self._stopped:  # else the event loop may be closed
                self._stopped = True  # at once, so that no work that waits is done
                self._loop.call_soon_threadsafe(self._on_failure, error)

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Return what a function returns on the thread, behind the work before it."""
        return await call_in(self._pool, function, *arguments)

    def close(self) -> None:
        """Stop the thread behind what it does now."""
        self._stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)
