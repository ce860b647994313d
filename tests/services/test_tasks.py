"""Tasks, threads and calls on executors: their errors are reported, and none begins past the helpers."""

from __future__ import annotations

import ast
import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.errors import Refused
from services.tasks import call_in, start_awaited, start_call, start_task, start_thread

_ROOT = Path(__file__).resolve().parents[2]
_STARTERS = {
    *("create_task", "ensure_future", "run_in_executor", "run_coroutine_threadsafe", "Thread", "TaskGroup"),
    *("Process", "ProcessPoolExecutor", "start_new_thread", "Timer"),
}
_ALLOWED = {
    "services/tasks.py": "the helpers themselves",
    "mesh/emulator/parallel.py": "mesh may not import services; a helper hands its error to the op that waits",
    "services/corpora/block_digest.py": "each future is asked for its result, which raises the error",
    "cli/tokenize/encoding.py": "each future is asked for its result, which raises the error",
}


async def _refuse() -> None:
    raise Refused("x: 1, expected 2; correct it")


async def _break() -> None:
    raise ValueError("embedded null byte")


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_the_error_of_a_task_is_logged_and_acted_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[Exception]:
        found: list[Exception] = []
        done = [asyncio.Event(), asyncio.Event()]
        start_task(_refuse(), "job a", lambda error: (found.append(error), done[0].set()))
        start_task(_break(), "job b", lambda error: (found.append(error), done[1].set()))
        await asyncio.wait_for(asyncio.gather(*(each.wait() for each in done)), 5)
        return found

    found = asyncio.run(run())
    assert [type(each) for each in found] == [Refused, ValueError]
    first, second = _errors(caplog)
    assert first == "job a: x: 1, expected 2; correct it"
    assert second.startswith("job b: internal error, ValueError at test_tasks.py:")
    assert "\n" not in second


def test_a_task_that_is_cancelled_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        begun = start_task(asyncio.sleep(60), "sleep")
        await asyncio.sleep(0)
        unbegun = start_task(asyncio.sleep(60), "sleep")
        for task in (begun, unbegun):
            task.cancel()
        await asyncio.wait([begun, unbegun])

    asyncio.run(run())
    assert not caplog.records


def test_a_task_that_nobody_holds_goes_on_to_its_end() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            ended.set()

        start_task(work(), "work")
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(run())


def test_awaited_work_raises_to_its_caller() -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="null byte"):
            await start_awaited(_break())
        with ThreadPoolExecutor(1) as executor:
            assert await call_in(executor, divmod, 7, 3) == (2, 1)
            with pytest.raises(ZeroDivisionError):
                await call_in(executor, divmod, 7, 0)

    asyncio.run(run())


def test_the_error_of_a_call_on_an_executor_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert start_call(executor, "sum", divmod, 7, 3).result() == (2, 1)
        future = start_call(executor, "removal of checkpoints", divmod, 7, 0)
    assert isinstance(future.exception(), ZeroDivisionError)
    (line,) = _errors(caplog)
    assert line.startswith("removal of checkpoints: internal error, ZeroDivisionError")


def test_the_error_of_a_thread_is_logged_and_acted_on(caplog: pytest.LogCaptureFixture) -> None:
    found: list[Exception] = []

    def fail() -> None:
        assert threading.current_thread().daemon
        raise OSError(40, "Too many levels of symbolic links")

    start_thread(fail, "reader", found.append).join(5)
    assert isinstance(found[0], OSError)
    assert _errors(caplog)[0].startswith("thread reader: internal error, OSError")


def test_nothing_starts_tasks_threads_or_calls_past_the_helpers() -> None:
    found = {}
    for folder in ("services", "worker", "compute", "aggregator", "optimizer", "cli", "training", "mesh"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            lines = list(_starts(ast.parse(path.read_text())))
            if lines:
                found[str(path.relative_to(_ROOT))] = lines
    assert found.keys() == _ALLOWED.keys(), {name: found.get(name) for name in found.keys() ^ _ALLOWED.keys()}


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.create_task(f())",
        "loop.create_task(f())",
        "asyncio.ensure_future(f())",
        "loop.run_in_executor(None, f)",
        "threading.Thread(target=f)",
        "Thread(target=f)",
        "class A(threading.Thread): pass",
        "pool = ThreadPoolExecutor(1)\npool.submit(f)",
        "class A:\n def __init__(self):\n  self._disk = ThreadPoolExecutor(1)\n def f(self):\n  self._disk.submit(f)",
        "def f(pool: ThreadPoolExecutor) -> None:\n pool.submit(g)",
    ],
)
def test_the_search_finds_each_kind_of_start(code: str) -> None:
    assert list(_starts(ast.parse(code)))


def test_the_search_passes_over_other_calls() -> None:
    assert not list(
        _starts(ast.parse("client.submit(job)\nthread: threading.Thread\nasyncio.gather(f(), g())"))
    )


def _starts(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that start a task, a thread or a call on an executor."""
    executors = set(_executors(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=pool, attr="submit")) if _last_name(pool) in executors:
                yield node.lineno
            case ast.Call(func=function) if _last_name(function) in _STARTERS:
                yield node.lineno
            case ast.ClassDef(bases=bases) if any(_last_name(base) in _STARTERS for base in bases):
                yield node.lineno


def _executors(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables and attributes that hold an executor."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=ast.Call(func=made)) if _last_name(made).endswith(
                "Executor"
            ):
                yield from map(_last_name, targets)
            case ast.arg(arg=name, annotation=ast.AST() as kind) if "Executor" in ast.unparse(kind):
                yield name


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
