"""Waits for what a plane's threads have to do."""

from __future__ import annotations

import asyncio

from plane.order_thread import OrderThread
from plane.plane import Plane
from services.tasks import call_in


async def wait_until_idle(thread: OrderThread) -> None:
    """Wait until a thread has nothing left to do, or has stopped."""
    while thread._waiting and not thread._is_stopped:
        await call_in(thread._pool, lambda: None)
    await call_in(thread._pool, lambda: None)  # behind the step that it does now


async def wait_for_threads(plane: Plane) -> None:
    """Wait for all work that a plane has by now, and for its calls on the event loop."""
    for thread in (plane._sums_thread, plane._kernel):
        await wait_until_idle(thread)
    for _ in range(2):  # a call on the event loop, and the reports of that turn
        await asyncio.sleep(0)


def join_threads(plane: Plane) -> None:
    """Wait for the end of the threads of a plane that is closed."""
    for pool in (plane._sums_thread._pool, plane._kernel._pool, plane._tensors._allocating):
        pool.shutdown()
