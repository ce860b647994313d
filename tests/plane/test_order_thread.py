"""A plane's thread works in sequence within a job and in turns between jobs; a job that waits holds up no other."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from plane.order_thread import OrderThread, Work
from tests.support.plane_threads import block, wait_until_idle

LIMIT_SECONDS = 30


class Recorded:
    """A thread and the names of the steps that it has done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: list[Exception] = []
        self.thread = OrderThread("orders", self.failed.append)

    def work(self, job: str, name: str, after: Future[Any] | None = None) -> Work:
        """Return work of one step."""
        return Work(job, lambda: self.done.append(name), after)

    def steps(self, job: str, *names: str | Future[Any]) -> Work:
        """Return work of several steps; a future among their names is waited for."""

        def take() -> Iterator[Future[Any] | None]:
            for name in names:
                if isinstance(name, Future):
                    yield name
                else:
                    self.done.append(name)
                    yield None

        return Work(job, take)

    def block(self) -> threading.Event:
        """Keep the thread busy until the event is set."""
        return block(self.thread)


def with_thread(scenario: Callable[[Recorded], Awaitable[None]]) -> None:
    async def run() -> None:
        recorded = Recorded()
        try:
            await scenario(recorded)
        finally:
            recorded.thread.close()

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_jobs_take_turns_step_by_step_and_each_keeps_its_order() -> None:
    async def scenario(recorded: Recorded) -> None:
        may_run = recorded.block()
        recorded.thread.start([recorded.steps("j", "j1", "j2", "j3"), recorded.work("j", "j4")])
        recorded.thread.start([recorded.work("k", "k1"), recorded.steps("k", "k2", "k3")])
        may_run.set()
        await wait_until_idle(recorded.thread)
        assert [each for each in recorded.done if each[0] == "j"] == ["j1", "j2", "j3", "j4"]
        assert [each for each in recorded.done if each[0] == "k"] == ["k1", "k2", "k3"]
        assert recorded.done[:6] == ["j1", "k1", "j2", "k2", "j3", "k3"]

    with_thread(scenario)


def test_work_that_waits_for_another_thread_holds_up_its_own_job_alone() -> None:
    async def scenario(recorded: Recorded) -> None:
        summed: Future[None] = Future()
        recorded.thread.start(
            [recorded.work("j", "j1"), recorded.work("j", "j2", after=summed), recorded.work("j", "j3")]
        )
        recorded.thread.start([recorded.work("k", each) for each in ("k1", "k2")])
        while len(recorded.done) < 3:
            await asyncio.sleep(0)
        assert sorted(recorded.done) == ["j1", "k1", "k2"]
        summed.set_result(None)
        await wait_until_idle(recorded.thread)
        assert recorded.done[3:] == ["j2", "j3"]

    with_thread(scenario)


def test_steps_may_wait_in_between() -> None:
    async def scenario(recorded: Recorded) -> None:
        allocated: Future[None] = Future()
        recorded.thread.start([recorded.steps("j", "j1", allocated, "j2"), recorded.work("j", "j3")])
        recorded.thread.start([recorded.work("k", "k1")])
        while len(recorded.done) < 2:
            await asyncio.sleep(0)
        assert sorted(recorded.done) == ["j1", "k1"]
        allocated.cancel()  # a wait ends in whatever way
        await wait_until_idle(recorded.thread)
        assert recorded.done[2:] == ["j2", "j3"]

    with_thread(scenario)


def test_an_error_stops_the_thread_for_all_jobs() -> None:
    def fail() -> None:
        raise KeyError("j")

    async def scenario(recorded: Recorded) -> None:
        may_run = recorded.block()
        recorded.thread.start([Work("j", fail), recorded.work("k", "k1")])
        may_run.set()
        await wait_until_idle(recorded.thread)
        recorded.thread.start([recorded.work("l", "l1")])
        await wait_until_idle(recorded.thread)
        assert recorded.done == []
        assert [str(each) for each in recorded.failed] == ["'j'"]

    with_thread(scenario)


def test_a_closed_thread_ends_within_work_and_says_nothing() -> None:
    async def scenario(recorded: Recorded) -> None:
        begun, may_end = threading.Event(), threading.Event()

        def steps() -> Iterator[None]:
            begun.set()
            assert may_end.wait(LIMIT_SECONDS)
            yield
            recorded.done.append("a step after the close")

        recorded.thread.start([Work("j", steps), recorded.work("j", "j2"), recorded.work("k", "k1")])
        await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        recorded.thread.close()
        recorded.thread.start([recorded.work("k", "k2")])
        may_end.set()
        await asyncio.to_thread(recorded.thread._thread.join, LIMIT_SECONDS)
        assert (recorded.done, recorded.failed) == ([], [])

    with_thread(scenario)


def test_what_is_done_is_not_kept_while_other_work_waits() -> None:
    class Payload:
        pass

    async def scenario(recorded: Recorded) -> None:
        payload = Payload()
        kept, alive = weakref.ref(payload), list[bool]()
        may_run = recorded.block()
        first = Work("j", partial(lambda payload: None, payload))
        del payload
        recorded.thread.start(
            [first, Work("j", lambda: None), Work("j", lambda: alive.append(kept() is not None))]
        )
        del first
        may_run.set()
        await wait_until_idle(recorded.thread)
        assert alive == [False]

    with_thread(scenario)


def test_work_that_a_stop_leaves_undone_is_not_kept() -> None:
    class Payload:
        pass

    async def scenario(recorded: Recorded) -> None:
        payloads = [Payload(), Payload()]
        kept = [weakref.ref(each) for each in payloads]
        may_run = recorded.block()
        recorded.thread.start([Work("j", partial(lambda payload: None, payloads.pop()))])
        await asyncio.sleep(0)
        recorded.thread.start([Work("k", partial(lambda payload: None, payloads.pop()))])
        recorded.thread.close()
        may_run.set()
        await asyncio.to_thread(recorded.thread._thread.join, LIMIT_SECONDS)
        assert [each() for each in kept] == [None, None]

    with_thread(scenario)
