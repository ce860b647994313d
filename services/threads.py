"""Calls in a thread that a cancellation does not leave behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from services.tasks import start_awaited

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def finish_in_thread(
    call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """Run a call in a thread, and return its result. A cancellation waits for the end of the call.

    `asyncio.to_thread` leaves the call running then: a file that it writes can appear after the clean-up that removes
    it.

    Raises:
        asyncio.CancelledError: the task was cancelled; the call has ended.
    """
    work = start_awaited(asyncio.to_thread(call, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():  # a thread can't be interrupted, also not by a second cancellation
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise
