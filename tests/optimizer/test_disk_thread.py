"""The optimizer's disk: work is in order within a job, and jobs take turns."""

from __future__ import annotations

import threading

import pytest

from optimizer.disk_thread import DiskThread
from services.tasks import start_call

LIMIT_SECONDS = 30


def test_jobs_take_turns_and_each_keeps_its_order() -> None:
    disk, begun, may_end = DiskThread(), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        assert may_end.wait(LIMIT_SECONDS)

    disk.of("a").submit(first)
    assert begun.wait(LIMIT_SECONDS)
    for work in ("a1", "a2", "a3", "b1", "b2", "c1", "a4"):
        disk.of(work[0]).submit(done.append, work)
    may_end.set()
    disk.close()
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_result_and_an_error_reach_whoever_asks() -> None:
    disk = DiskThread()
    failing = start_call(disk.of("a"), "a read", int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(LIMIT_SECONDS)
    assert disk.of("a").submit(int, "7").result(LIMIT_SECONDS) == 7, "the thread goes on"
    disk.close()


def test_work_that_was_given_up_is_not_done() -> None:
    disk, may_end = DiskThread(), threading.Event()
    done: list[int] = []
    disk.of("a").submit(may_end.wait, LIMIT_SECONDS)
    waiting = disk.of("a").submit(done.append, 1)
    assert waiting.cancel()
    may_end.set()
    disk.close()
    assert done == []


def test_a_stopped_thread_takes_no_work() -> None:
    disk = DiskThread()
    disk.close()
    with pytest.raises(RuntimeError):
        disk.of("a").submit(int)
