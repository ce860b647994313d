"""A thread that does orders' work: in sequence within a job, and in turns between jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from services.tasks import start_thread

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

    A job whose work waits for a future does not have a turn until the future is done. All that the thread knows of jobs
    it learns from one queue, so it needs no lock.

    Args:
        name: name of the thread.
        on_failure: called on the event loop with that error.
    """

    def __init__(self, name: str, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        # Work to do, a job whose wait is over, or None once there is nothing more to do.
        self._inbox: SimpleQueue[Sequence[Work] | str | None] = SimpleQueue()
        self._is_stopped = False
        self._waiting: dict[str, deque[Work]] = {}  # of each job that has work
        self._turns: deque[str] = deque()  # jobs whose first work can be done
        self._thread = start_thread(self._run, name)

    def start(self, works: Sequence[Work]) -> None:
        """Do work in sequence, behind earlier work of the same jobs; called on the event loop."""
        if works and not self._is_stopped:
            self._inbox.put(works)

    def close(self) -> None:
        """Stop the thread behind the step that it does now."""
        self._is_stopped = True
        self._inbox.put(None)

    # ---- on the thread ----

    def _run(self) -> None:
        try:
            while self._receive():
                self._do_turn(self._turns.popleft())
        except Exception as error:
            was_stopped, self._is_stopped = self._is_stopped, True
            if not was_stopped:  # else the event loop may be closed
                self._loop.call_soon_threadsafe(self._on_failure, error)
        finally:  # payloads of work that is not done
            self._waiting.clear()
            while not self._inbox.empty():
                self._inbox.get()

    def _receive(self) -> bool:
        """Take what is in the inbox, and wait for it if no job has a turn; return False once it is stopped."""
        while not self._turns or not self._inbox.empty():
            received = self._inbox.get()
            if received is None:
                return False
            if isinstance(received, str):
                self._turns.append(received)
                continue
            for work in received:
                waiting = self._waiting.setdefault(work.job, deque())
                waiting.append(work)
                if len(waiting) == 1:
                    self._give_turn(work)
        return not self._is_stopped

    def _give_turn(self, first: Work) -> None:
        """Give a job a turn, as soon as its first work can be done."""
        if first.after is None or first.after.done():
            self._turns.append(first.job)
        else:
            first.after.add_done_callback(lambda _: self._inbox.put(first.job))

    def _do_turn(self, job: str) -> None:
        """Do a job's first work, or some steps of it, and give it the next turn."""
        waiting = self._waiting[job]
        rest = self._do_steps(waiting[0])
        if rest is None:
            waiting.popleft()
        else:
            waiting[0] = rest
        if waiting:
            self._give_turn(waiting[0])
        else:
            del self._waiting[job]

    def _do_steps(self, work: Work) -> Work | None:
        """Do an order's work up to a step behind which it waits, or another job has its turn; return the rest."""
        steps = work.do()
        if steps is not None:
            for after in steps:
                if after is not None or self._turns or not self._inbox.empty() or self._is_stopped:
                    return Work(work.job, partial(iter, steps), after)
        return None
