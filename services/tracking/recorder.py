"""One tracker of one job, on a thread of its own: whatever it does, the job goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from services.printable import LINE_CHARACTERS, printable, printable_path
from services.runtime.queue_thread import QueueThread
from services.tracking.points import Point
from services.tracking.tracker import Run, Tracker

MOST_WAITING_POINTS = 10_000
"""Number of points that wait for a slow tracker; further ones are lost."""
MOST_POINTS = 1_000_000
"""Number of steps that a tracker gets of a job; of a longer one it gets every second, third, ... step."""
_BATCH_POINTS = 1000
_RETRY_SECONDS = 60.0
"""Pause after a tracker could not be opened. Points that come meanwhile are lost."""


class Recorder:
    """Writes a job's points to a tracker. `put`, `end` and `wait` may be called from one other thread, and don't block.

    Args:
        name: name of the tracker.
        run: the job.
        steps: number of steps of the job.
        open_tracker: opens the tracker.
        count_lost: callback, called with the name and a number of points that are lost. Any thread.
        tell: callback, called once with a line about what is wrong. Any thread.
        after: earlier recorder of the same tracker and job, whose end this one waits for; None for none.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        steps: int,
        open_tracker: Callable[[str, Run], Tracker],
        *,
        count_lost: Callable[[str, int], None],
        tell: Callable[[str], None],
        after: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._run = run
        self._every = -(-steps // MOST_POINTS)
        self._open_tracker = open_tracker
        self._count_lost = count_lost
        self._tell = tell
        self._after = after
        self._clock = clock
        self._tracker: Tracker | None = None
        self._retry_at_seconds = float("-inf")
        self._told = False
        self._thread: QueueThread[Point] = QueueThread(
            f"tracker-{name}",
            self._write,
            most_waiting=MOST_WAITING_POINTS,
            most_at_once=_BATCH_POINTS,
            first=self._await_earlier,
            last=self._close,
        )

    def put(self, point: Point) -> None:
        """Give the tracker a point; it is lost if too many wait."""
        if point.kind == "step" and point.step % self._every:
            return
        if not self._thread.put(point):
            self._lose(1, f"is too slow: more than {MOST_WAITING_POINTS} points wait for it")

    def end(self) -> None:
        """Have the tracker closed after the points that wait."""
        self._thread.end()

    def wait(self, seconds: float | None) -> bool:
        """Wait until the tracker is closed, at most for some seconds, or without a limit; return whether it is."""
        return self._thread.wait(seconds)

    def _await_earlier(self) -> None:
        if self._after is not None:
            self._after.wait(None)
            self._after = None

    def _close(self) -> None:
        if self._tracker is not None:
            try:
                self._tracker.close()
            except Exception as error:
                self._lose(0, _describe(error))

    def _write(self, points: Sequence[Point]) -> None:
        if not points:
            return
        lacking = list(points)
        try:
            if self._tracker is None:
                if self._clock() < self._retry_at_seconds:
                    self._count_lost(self._name, len(points))
                    return
                self._run.folder.mkdir(parents=True, exist_ok=True)
                self._tracker = self._open_tracker(self._name, self._run)
            lacking = self._tracker.written.select_new(points)
            if lacking:
                self._tracker.write(lacking)
        except Exception as error:
            if self._tracker is None:
                self._retry_at_seconds = self._clock() + _RETRY_SECONDS
            self._lose(len(lacking), _describe(error))

    def _lose(self, points: int, reason: str) -> None:
        """Count lost points, and tell the first reason."""
        if points:
            self._count_lost(self._name, points)
        if not self._told:
            self._told = True
            self._tell(
                printable(
                    f"tracker {self._name}: {reason}; the job goes on, lost points are counted",
                    LINE_CHARACTERS,
                )
            )


def _describe(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if isinstance(error.filename, str):
            text = f"{printable_path(error.filename)}: {text}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
