"""A thread that does orders' work: in sequence within a job, and in turns between jobs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from services.tasks import start_call

Steps: TypeAlias = "Iterator[Future[Any] | None]"
"""Work in steps of about one chunk each. Between two steps other jobs have their turns; after a step that yields a
future, until that is done."""


class Work(NamedTuple):
    """Work of one order.

    Attributes:
        job: id of the job that it is for.
        do: does the work, or returns its steps.
        after: what must be done before the work begins; None for nothing.
    """

    job: str
    do: Callable[[], Steps | None]
    after: Future[Any] | None = None


class OrderThread:
    """One thread of a plane. An error of its work stops it for good.

    A job whose work waits for a future does not have a turn until the future is done.

    Args:
        pool: has the thread.
        on_failure: called on the event loop with that error.
    """

    def __init__(self, pool: ThreadPoolExecutor, on_failure: Callable[[Exception], None]) -> None:
        self._pool = pool
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._lock = threading.RLock()  # of all that follows
        self._waiting: dict[str, deque[Work]] = {}  # of each job that has work; the thread may do more of it
        self._turns: deque[str] = deque()  # jobs whose first work can be done
        self._is_running = False
        self._is_stopped = False

    def start(self, works: Sequence[Work]) -> None:
        """Do work in sequence, behind earlier work of the same jobs; called on the event loop."""
        with self._lock:
            if self._is_stopped:
                return
            for work in works:
                waiting = self._waiting.get(work.job)
                if waiting is None:
                    self._waiting[work.job] = deque((work,))
                    self._give_turn(work.job)
                else:
                    waiting.append(work)
            must_wake = self._must_wake()
        if must_wake:  # without the lock, for which the thread would wait at once
            start_call(self._pool, "orders", self._run)

    def close(self) -> None:
        """Stop the thread behind the step that it does now."""
        with self._lock:
            self._stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        self._is_stopped = True
        self._waiting.clear()
        self._turns.clear()

    def _give_turn(self, job: str) -> None:
        """Give a job a turn, as soon as its first work can be done."""
        after = self._waiting[job][0].after
        if after is None or after.done():
            self._turns.append(job)
        else:
            after.add_done_callback(lambda _: self._end_wait(job))

    def _end_wait(self, job: str) -> None:
        """Give a job the turn that it has waited for; any thread may call it."""
        with self._lock:
            if not self._is_stopped:
                self._turns.append(job)
                if self._must_wake():
                    start_call(self._pool, "orders", self._run)

    def _must_wake(self) -> bool:
        """Return whether the thread must be woken; it counts as running then."""
        must_wake = bool(self._turns) and not self._is_running
        self._is_running |= must_wake
        return must_wake

    # ---- on the thread ----

    def _run(self) -> None:
        try:
            with self._lock:
                work = self._take()
            while work is not None:
                work = self._end_turn(work.job, _do_step(work))
        except Exception as error:  # the thread pool would swallow it
            with self._lock:
                was_stopped = self._is_stopped  # then the event loop may be closed
                self._stop()  # at once, so that no work that waits is done
            if not was_stopped:
                self._loop.call_soon_threadsafe(self._on_failure, error)

    def _take(self) -> Work | None:
        """Return the first work of the job whose turn it is; None if there is none."""
        if self._turns:
            return self._waiting[self._turns.popleft()].popleft()
        self._is_running = False
        return None

    def _end_turn(self, job: str, rest: Work | None) -> Work | None:
        """Give the job its next turn, if it has more work; return the work of whose turn it is now."""
        with self._lock:
            if self._is_stopped:
                return None
            waiting = self._waiting[job]
            if rest is not None:
                waiting.appendleft(rest)
            if waiting:
                self._give_turn(job)
            else:
                del self._waiting[job]
            return self._take()


def _do_step(work: Work) -> Work | None:
    """Do a step of an order's work; return the rest of it, or None if there is none."""
    steps = work.do()
    if steps is not None:
        for after in steps:
            return Work(work.job, partial(iter, steps), after)
    return None
