"""Tasks, threads and calls on executors whose errors are reported.

Python drops the error of a task, a future or a thread that nobody awaits, or tells it long after. So all of them begin
here: an error reaches a callback that acts on it, the log, or a caller that awaits the result. A test over the whole
tree finds others (`tests/services/test_tasks.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from services.errors import TiermeshError, describe_internal_error

log = logging.getLogger("tiermesh")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
OnError = Callable[[Exception], object]
"""Takes the error that ended a task or a call."""

_running: set[asyncio.Task[None]] = set()  # the event loop itself holds tasks weakly


def start_task(
    work: Coroutine[Any, Any, None], what: str, on_error: OnError | None = None
) -> asyncio.Task[None]:
    """Start a task that nobody awaits, on the running event loop.

    Args:
        work: coroutine of the task.
        what: what the task does, for the log.
        on_error: callback, called on the event loop with the error that ends the task, after that is logged.
    """

    def note_end(task: asyncio.Task[None]) -> None:
        _running.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # others end the event loop
            _note_error(what, error, on_error)

    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(note_end)
    return task


def start_awaited(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Start a task whose caller awaits its result, or has cancelled it."""
    return asyncio.ensure_future(work)


async def gather_all(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run several at once and return their results; when one fails, end the others, and raise its error."""
    tasks = [start_awaited(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def call_in(executor: Executor, call: Callable[..., Result], *arguments: object) -> Result:
    """Run a call on an executor, and return its result; `asyncio.to_thread` does so on the default one."""
    return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)


def start_call(
    executor: Executor,
    what: str,
    call: Callable[Arguments, Result],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> Future[Result]:
    """Queue a call on an executor; its error is logged, and raised to those who ask for its result.

    Args:
        executor: the executor.
        what: what the call does, for the log.
        call: the call.
        arguments: positional arguments of the call.
        named: arguments by name.
    """

    def run() -> Result:
        try:
            return call(*arguments, **named)
        except Exception as error:
            _note_error(what, error, None)
            raise

    return executor.submit(run)


def start_thread(
    call: Callable[[], object], name: str, on_error: OnError | None = None, *, daemon: bool = True
) -> threading.Thread:
    """Start a thread.

    Args:
        call: what the thread runs.
        name: name of the thread, also for the log.
        on_error: callback, called on the thread with the error that ends it, after that is logged.
        daemon: whether the process may end before the thread does.
    """

    def run() -> None:
        try:
            call()
        except Exception as error:
            _note_error(f"thread {name}", error, on_error)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def describe_error(error: BaseException) -> str:
    """Return one line about an error: its own text if people were meant to read it."""
    return str(error) if isinstance(error, TiermeshError) else describe_internal_error(error)


def _note_error(what: str, error: Exception, on_error: OnError | None) -> None:
    log.error("%s: %s", what, describe_error(error))
    log.debug("traceback of the error above", exc_info=error)
    if on_error is not None:
        on_error(error)
