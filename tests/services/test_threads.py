"""Calls in a thread: their results, their errors, and that nothing goes on after a cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from services.errors import Refused
from services.threads import finish_in_thread


def test_results_and_errors_of_the_call_are_passed_on() -> None:
    def refuse(*, why: str) -> None:
        raise Refused(why)

    async def test() -> None:
        assert await finish_in_thread(divmod, 7, 3) == (2, 1)
        with pytest.raises(Refused, match="no"):
            await finish_in_thread(refuse, why="no")

    asyncio.run(test())


@pytest.mark.parametrize("cancellations", [1, 2])
@pytest.mark.parametrize("error", [None, Refused("late")])
def test_a_cancellation_waits_for_the_end_of_the_call(cancellations: int, error: Refused | None) -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended = []

    def call() -> None:
        begun.set()
        assert may_end.wait(30)
        ended.append(True)
        if error is not None:
            raise error

    async def test() -> None:
        task = asyncio.create_task(finish_in_thread(call))
        await asyncio.to_thread(begun.wait, 30)
        for _ in range(cancellations):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0)
            assert not done
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(test())
