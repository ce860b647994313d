"""The thread of an optimizer's disk: its work is in order within a job, and jobs take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from services.tasks import start_call

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DiskThread:
    """One thread with a queue of work for each job."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "disk")
        self._lock = threading.Lock()
        self._queues: dict[
            str, deque[Callable[[], None]]
        ] = {}  # not empty; the job whose turn is next comes first

    def of(self, job: str) -> Executor:
        """Return an executor of a job's work; of work for no job if the id is empty."""
        return _JobExecutor(partial(self._add, job))

    def _add(self, job: str, work: Callable[[], None]) -> None:
        with self._lock:
            start_call(self._pool, "turns on the disk", self._take_turn)
            self._queues.setdefault(job, deque()).append(work)

    def _take_turn(self) -> None:
        with self._lock:
            job = next(iter(self._queues))
            queue = self._queues.pop(job)
            work = queue.popleft()
            if queue:
                self._queues[job] = queue  # at the end
        work()

    def close(self) -> None:
        """Stop the thread, behind all its work."""
        self._pool.shutdown()


class _JobExecutor(Executor):
    def __init__(self, add: Callable[[Callable[[], None]], None]) -> None:
        self._add = add

    def submit(
        self, call: Callable[Arguments, Result], /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Future[Result]:
        """Queue a call."""
        future = Future[Result]()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*arguments, **named))
            except Exception as error:
                future.set_exception(error)

        self._add(work)
        return future
