"""Checks that are repeated while a call or a connection is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.errors import TiermeshError

CHECK_AGAIN_SECONDS = 5.0
"""Time between two checks of whether the peer of an open call or connection is still trusted."""


@asynccontextmanager
async def keep_checking(check: Callable[[], None]) -> AsyncIterator[None]:
    """Cancel the block within `CHECK_AGAIN_SECONDS` after `check` began to raise an error.

    Raises:
        TiermeshError: the block was cancelled for this error of `check`.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    ended: list[TiermeshError] = []
    timer: asyncio.TimerHandle

    def check_again() -> None:
        nonlocal timer
        try:
            check()
        except TiermeshError as error:
            ended.append(error)
            task.cancel()
        else:
            timer = loop.call_later(CHECK_AGAIN_SECONDS, check_again)

    timer = loop.call_later(CHECK_AGAIN_SECONDS, check_again)
    try:
        yield
    except asyncio.CancelledError:
        if ended:
            raise ended[0] from None
        raise
    finally:
        timer.cancel()
