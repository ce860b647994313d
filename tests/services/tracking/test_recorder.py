"""A tracker that fails, hangs or is slow costs points, which are counted, and never time of its caller."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from services.tracking import recorder as recorder_module
from services.tracking.points import Point
from services.tracking.recorder import MOST_POINTS, Recorder
from services.tracking.tracker import Run, Tracker, WrittenSteps


class Recorded:
    """A tracker in memory."""

    def __init__(self, on_write: Callable[[], None] = lambda: None) -> None:
        self.written = WrittenSteps()
        self.steps: list[int] = []
        self.closed = False
        self._on_write = on_write

    def write(self, points: Sequence[Point]) -> None:
        self._on_write()
        self.steps += [point.step for point in points]
        self.written.add(points)

    def close(self) -> None:
        self.closed = True


class Watched:
    """A recorder, with what it has counted and told."""

    def __init__(
        self, open_it: Callable[[str, Run], Tracker], folder: Path, steps: int = 10, name: str = "csv"
    ) -> None:
        self.lost: Counter[str] = Counter()
        self.told: list[str] = []
        self.now = 0.0
        self.on_told: Callable[[], object] = lambda: None
        self.recorder = Recorder(
            name,
            Run("a", "tiny", folder, {}),
            steps,
            open_it,
            count_lost=self._count,
            tell=self._tell,
            clock=lambda: self.now,
        )

    def _tell(self, text: str) -> None:
        self.told.append(text)
        self.on_told()

    def _count(self, name: str, points: int) -> None:
        self.lost[name] += points

    def put(self, *steps: int) -> None:
        for step in steps:
            self.recorder.put(Point("step", step, 1.0, {"tiermesh_loss": 1.0}))

    def finish(self) -> None:
        self.recorder.end()
        assert self.recorder.wait(20)


def test_points_arrive_in_order_and_the_tracker_is_closed(tmp_path: Path) -> None:
    tracker = Recorded()
    watched = Watched(lambda name, run: tracker, tmp_path)
    watched.put(*range(1, 11))
    watched.put(4, 5, 11)  # the job went back to step 3
    watched.finish()
    assert tracker.steps == list(range(1, 12))
    assert tracker.closed
    assert not watched.lost and not watched.told


def test_a_tracker_that_hangs_costs_points_beyond_the_queue_and_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_WAITING_POINTS", 5)
    hangs, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert hangs.wait(60)

    watched = Watched(lambda name, run: Recorded(hang), tmp_path)
    watched.put(1)
    assert entered.wait(20)
    watched.put(*range(2, 20))
    assert watched.lost == {"csv": 13}, "all but 5 that wait"
    (line,) = watched.told
    assert "tracker csv: is too slow" in line and len(line) <= 300
    watched.recorder.end()
    assert not watched.recorder.wait(0)
    hangs.set()
    assert watched.recorder.wait(20)


def test_a_tracker_that_fails_is_told_once_and_used_again(tmp_path: Path) -> None:
    fails = [True, True, False]
    done = threading.Semaphore(0)

    def fail() -> None:
        done.release()
        if fails.pop(0):
            raise RuntimeError("no\nnetwork")

    tracker = Recorded(fail)
    watched = Watched(lambda name, run: tracker, tmp_path)
    for step in (1, 2, 3):
        watched.put(step)
        assert done.acquire(timeout=20)
    watched.finish()
    assert tracker.steps == [3]
    assert watched.lost == {"csv": 2}
    (line,) = watched.told
    assert line.isprintable() and "RuntimeError: no" in line


def test_a_tracker_that_can_t_be_opened_is_tried_again_after_a_minute(tmp_path: Path) -> None:
    tracker, told = Recorded(), threading.Event()
    attempts: list[float] = []

    def open_late(name: str, run: Run) -> Tracker:
        attempts.append(watched.now)
        if len(attempts) == 1:
            raise ConnectionError("refused")
        return tracker

    watched = Watched(open_late, tmp_path)
    watched.on_told = told.set
    watched.put(1)
    assert told.wait(20)
    watched.now = 61.0
    watched.put(2)
    watched.finish()
    assert (attempts, tracker.steps) == ([0.0, 61.0], [2])
    assert watched.lost == {"csv": 1}


def test_a_long_job_is_thinned(tmp_path: Path) -> None:
    tracker = Recorded()
    watched = Watched(lambda name, run: tracker, tmp_path, steps=2 * MOST_POINTS + 1)
    watched.put(*range(1, 13))
    watched.finish()
    assert tracker.steps == [3, 6, 9, 12]


def test_a_folder_that_can_t_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watched = Watched(lambda name, run: Recorded(), tmp_path / "file" / "a")
    watched.put(1)
    watched.finish()
    (line,) = watched.told
    assert "/file/a: Not a directory" in line and len(line) <= 300
    assert watched.lost == {"csv": 1}
