"""The reading of a job's inputs while the job is built: verifying and converting take minutes for large files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from services.printable import printable_path
from worker.core import events as ev

log = logging.getLogger("tiermesh.worker")

TELL_SECONDS = 2.0
"""Shortest time between two reports to the aggregator."""
LOG_SECONDS = 10.0
"""Time between two lines of the log."""
_FIELD = "training_config.data_path"
_MB = 1_000_000


class BuildDropped(BaseException):
    """The job whose files are read is not wanted any longer."""


class InputReading:
    """Watcher of the reading of one build of a job.

    Args:
        job: id of the job.
        feed: passes the core an input.
        clock: monotonic clock in seconds.

    Attributes:
        job: as above.
    """

    def __init__(self, job: str, feed: Callable[[ev.Input], None], clock: Callable[[], float]) -> None:
        self.job = job
        self._feed = feed
        self._clock = clock
        self._sizes: dict[Path, tuple[int, int]] = {}  # bytes read, and size, by file
        self._told_seconds = self._logged_seconds = clock()
        self._is_dropped = False

    def drop(self) -> None:
        """End the reading; any thread may call."""
        self._is_dropped = True

    def watch(self, path: Path, read_bytes: int, size_bytes: int) -> None:
        """Take how far the reading of a file is.

        Raises:
            BuildDropped: the job is not wanted any longer.
        """
        if self._is_dropped:
            raise BuildDropped
        self._sizes[path] = read_bytes, size_bytes
        now = self._clock()
        if now - self._told_seconds >= TELL_SECONDS:
            self._told_seconds = now
            here, size = (sum(each) for each in zip(*self._sizes.values(), strict=True))
            self._feed(ev.Fetching(self.job, _FIELD, here, size, local=True))
        if now - self._logged_seconds >= LOG_SECONDS:
            self._logged_seconds = now
            log.info(
                "job %s: reading %s, %s of %s MB",
                self.job, printable_path(path), f"{read_bytes / _MB:,.0f}", f"{size_bytes / _MB:,.0f}",
            )  # fmt: skip
