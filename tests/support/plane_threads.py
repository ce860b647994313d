"""Waits for what a plane's threads have to do."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from plane.order_thread import OrderThread, Work
from plane.plane import Plane

LIMIT_SECONDS = 30
_MARK = "a job of the test's own"


def block(thread: OrderThread) -> threading.Event:
    """Keep a thread busy until the event is set."""
    may_run = threading.Event()

    def wait() -> None:
        may_run.wait(LIMIT_SECONDS)

    thread.start([Work(_MARK, wait)])
    return may_run


def mark(thread: OrderThread) -> Future[bool]:
    """Return a future of whether a thread has other work left, which it answers in a turn of its own."""
    answer: Future[bool] = Future()

    def look() -> None:
        answer.set_result(thread._waiting.keys() != {_MARK})

    thread.start([Work(_MARK, look)])
    return answer


async def wait_until_idle(thread: OrderThread) -> None:
    """Wait until a thread has nothing left to do, or has stopped."""
    has_work = True
    while has_work and not thread._is_stopped:
        answer = mark(thread)
        while not answer.done() and thread._thread.is_alive():
            await asyncio.sleep(0)
        has_work = answer.done() and answer.result()
    await asyncio.sleep(0)  # for the failure that has stopped it


async def wait_for_threads(plane: Plane) -> None:
    """Wait for all work that a plane has by now, and for its calls on the event loop."""
    for thread in (plane._sums_thread, plane._kernel):
        await wait_until_idle(thread)
    for _ in range(2):  # a call on the event loop, and the reports of that turn
        await asyncio.sleep(0)


def join_threads(plane: Plane) -> None:
    """Wait for the end of the threads of a plane that is closed."""
    for thread in (plane._sums_thread, plane._kernel):
        thread._thread.join(LIMIT_SECONDS)
    plane._tensors._allocating.shutdown()
