"""Tests of leadership on storage that answers, hangs, fails or belongs to another leader."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggregator.core.succession import Deposed
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.leadership import Leadership
from services.errors import Failed
from services.timeouts import Timeouts

TIMEOUTS = Timeouts.from_heartbeat(20.0, {"tick": 0.05})
"""A short tick, since tests wait for it. No pause of this machine or its disk is as long as the other timeouts."""
LIMIT_SECONDS = 300.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on when a test says so, besides."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_seconds = 0.0

    def time(self) -> float:
        return super().time() + self._passed_seconds

    def let_pass(self, seconds: float) -> None:
        """Have time pass in which the loop stands still, like a stopped process."""
        self._passed_seconds += seconds


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


@contextmanager
def leading(path: Path) -> Iterator[JobQueue]:
    with JobQueue(path, TIMEOUTS.lock) as queue:
        queue.raise_epoch("a", TIMEOUTS.takeover)
        yield queue


def leadership_with_known_standbys(queue: JobQueue, loop: Loop, timeouts: Timeouts = TIMEOUTS) -> Leadership:
    leadership = Leadership(queue, timeouts, loop.time)
    loop.let_pass(2 * timeouts.takeover)
    leadership.check_leading(loop.time())  # after a long silence it reads the standbys at once
    return leadership


async def error_at_end(leadership: Leadership) -> Exception:
    try:
        await asyncio.wait_for(leadership.run(), LIMIT_SECONDS)
    except Exception as error:
        return error
    raise AssertionError("it ended without an error")


def run_to_end(leadership: Leadership) -> Exception:
    return asyncio.run(error_at_end(leadership))


def run_within(loop: Loop, scenario: Coroutine[None, None, Exception]) -> Exception:
    return loop.run_until_complete(asyncio.wait_for(scenario, LIMIT_SECONDS))


def test_a_leader_beats_for_standbys_and_ends_when_one_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"

    async def scenario(queue: JobQueue, other: JobQueue) -> Exception:
        leadership = Leadership(queue, TIMEOUTS)
        ending = asyncio.ensure_future(error_at_end(leadership))
        first = other.look("b")
        assert (first.epoch, first.leader, first.known) == (1, "a", False)
        while other.look("b").beat < first.beat + 3:
            assert not ending.done()
            await asyncio.sleep(TIMEOUTS.tick)  # as a standby does
        assert list(leadership.standbys.silent_seconds(time.monotonic())) == ["b"]
        other.raise_epoch("b")
        return await ending

    with leading(path) as queue, JobQueue(path, TIMEOUTS.lock) as other:
        error = asyncio.run(scenario(queue, other))
    assert isinstance(error, Deposed)
    assert "epoch 2" in str(error) and "epoch 1" in str(error)


def test_without_standbys_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with leading(path) as queue:
        content = path.read_bytes()
        leadership = Leadership(queue, TIMEOUTS)
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(leadership.run(), 5 * TIMEOUTS.tick))
        assert path.read_bytes() == content


class LockedQueue(JobQueue):
    """A queue that waits shortly for another writer, and counts its attempts that failed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lock_seconds=0.1)
        self.failures = 0

    def beat(self, forgotten: Iterable[str] = ()) -> None:
        try:
            super().beat(forgotten)
        except Failed:
            self.failures += 1
            raise


def test_unwritable_storage_ends_the_leader_before_a_standby_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Loop
) -> None:
    path = tmp_path / "queue.sqlite"

    async def scenario(leadership: Leadership, queue: LockedQueue) -> Exception:
        ending = asyncio.ensure_future(error_at_end(leadership))
        while queue.failures < 2:
            await asyncio.sleep(TIMEOUTS.tick)
        assert not ending.done(), "a standby still waits"
        loop.let_pass(TIMEOUTS.lapse)
        return await ending

    with LockedQueue(path) as queue, JobQueue(path) as other:
        queue.raise_epoch("a", TIMEOUTS.takeover)
        other.look("b")
        leadership = leadership_with_known_standbys(queue, loop)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        error = run_within(loop, scenario(leadership, queue))
        blocker.close()
    assert isinstance(error, Deposed)
    assert str(path) in str(error) and "locked" in str(error)
    assert caplog.messages.count(str(error)) == 1


class HangingQueue(JobQueue):
    """A queue whose storage can stop answering."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def hang(self) -> None:
        self.asked.clear()
        self.answers.clear()

    def standbys(self) -> dict[str, int]:
        self.asked.set()
        self.answers.wait(LIMIT_SECONDS)
        return super().standbys()

    def resign(self) -> None:
        raise Failed("it hung")


def test_storage_that_hangs_ends_the_leader(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "queue.sqlite"
    queue = HangingQueue(path)
    with queue, JobQueue(path) as other:
        queue.raise_epoch("a", TIMEOUTS.takeover)
        other.look("b")
        leadership = leadership_with_known_standbys(queue, loop, Timeouts.from_heartbeat(0.5))
        queue.hang()
        error = run_within(loop, error_at_end(leadership))
        queue.answers.set()
        leadership.close()
    assert isinstance(error, Deposed)
    assert str(path) in str(error) and "does not answer" in str(error)


def test_a_leader_stopped_during_a_renewal_waits_for_its_answer(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "queue.sqlite"

    async def scenario(leadership: Leadership, queue: HangingQueue, other: JobQueue) -> Exception:
        ending = asyncio.ensure_future(error_at_end(leadership))
        while not queue.asked.is_set():
            await asyncio.sleep(TIMEOUTS.tick)
        loop.let_pass(TIMEOUTS.lapse + 2 * TIMEOUTS.tick)
        other.raise_epoch("b")
        await asyncio.sleep(TIMEOUTS.tick)  # the loop runs what has become due
        assert not ending.done()
        queue.answers.set()
        return await ending

    queue = HangingQueue(path)
    with queue, JobQueue(path) as other:
        queue.raise_epoch("a", TIMEOUTS.takeover)
        other.look("b")
        leadership = leadership_with_known_standbys(queue, loop)
        queue.hang()
        error = run_within(loop, scenario(leadership, queue, other))
    assert isinstance(error, Deposed)
    assert "epoch 2" in str(error) and "epoch 1" in str(error)


def test_without_standbys_a_storage_error_ends_the_leader(tmp_path: Path) -> None:
    class Broken(JobQueue):
        def standbys(self) -> dict[str, int]:
            raise Failed("queue.sqlite: damaged")

    with Broken(tmp_path / "queue.sqlite") as queue:
        error = run_to_end(Leadership(queue, TIMEOUTS))
    assert type(error) is Failed
    assert str(error) == "queue.sqlite: damaged"


def test_a_leader_stopped_for_long_checks_before_it_acts(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with leading(path) as queue, JobQueue(path) as other:
        leadership = Leadership(queue, TIMEOUTS, lambda: 0.0)
        other.look("b")
        leadership.check_leading(2 * TIMEOUTS.takeover)
        assert other.look("b").beat == 1, "it still leads, and beats"
        other.raise_epoch("b")
        leadership.check_leading(2 * TIMEOUTS.takeover + 0.01)  # it led just now
        with pytest.raises(Deposed, match=r"epoch 2.*epoch 1"):
            leadership.check_leading(4 * TIMEOUTS.takeover)


def test_a_silent_standby_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with leading(path) as queue, JobQueue(path) as other:
        leadership = Leadership(queue, TIMEOUTS)
        other.look("b")
        now = time.monotonic()
        for away in (1, 2, 3, 4):
            leadership.check_leading(now + away * (TIMEOUTS.comeback + 1))
        assert not leadership.standbys
        assert not other.look("b").known


def test_a_leader_that_resigns_lets_a_standby_take_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    with leading(path) as queue, JobQueue(path) as other:
        assert other.look("b").takeover_seconds == TIMEOUTS.takeover
        Leadership(queue, TIMEOUTS).close()
        sighting = other.look("b")
        assert sighting.takeover_seconds == 0.0
        assert other.take_over(sighting, "b", TIMEOUTS.takeover) == 2
        Leadership(queue, TIMEOUTS).close()
        assert other.look("b").takeover_seconds == TIMEOUTS.takeover, "a deposed leader can't resign"
