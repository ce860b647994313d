"""Who reads and writes checkpoints at the moment: nothing that is in use is removed. Any thread may call."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.errors import Failed

READ_SECONDS = 60.0
"""Time for which a checkpoint stays after it was listed, or one of its files was read, for its reader to go on."""
_MOST_REMOVED = 1000
"""Removed jobs that are remembered; one is written to at most by what was queued before it was closed."""

Result = TypeVar("Result")


@dataclass
class _Download:
    """Reading of a checkpoint by peers, which may end without a word.

    Attributes:
        until_seconds: time until which the checkpoint stays.
        unread: SHA-256 of the files that nobody has read to their end yet.
    """

    until_seconds: float
    unread: set[str]


class Reader:
    """One reader of checkpoints in this process.

    Attributes:
        path: the checkpoint that it reads; None before it has chosen one.
    """

    path: Path | None = None


class CheckpointUse:
    """The checkpoints that are read, the job that is written, and the jobs that were removed.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._downloads: dict[Path, _Download] = {}
        self._readers: list[Reader] = []
        self._written: list[str] = []
        self._removed: deque[str] = deque(maxlen=_MOST_REMOVED)

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Add a reader while the block runs."""
        reader = Reader()
        with self._lock:
            self._readers.append(reader)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.remove(reader)

    def choose(self, reader: Reader, path: Path) -> None:
        """Have a reader read a checkpoint, which is not removed until it has read it."""
        with self._lock:
            reader.path = path

    def note_listed(self, path: Path, files: Iterable[str]) -> None:
        """Note that a peer is to read the files of a checkpoint, named by their SHA-256."""
        with self._lock:
            self._downloads = {each: known for each, known in self._downloads.items() if self._is_read(each)}
            self._downloads[path] = _Download(self._clock() + READ_SECONDS, set(files))

    def note_read(self, path: Path, file: str, *, is_end: bool) -> None:
        """Note that a peer has read a piece of a checkpoint's file.

        Args:
            path: the checkpoint.
            file: SHA-256 of the file.
            is_end: whether it was the last piece. With the last one of all files the checkpoint is free again.
        """
        with self._lock:
            download = self._downloads.setdefault(path, _Download(0.0, {file, ""}))  # begun before a restart
            download.until_seconds = self._clock() + READ_SECONDS
            if is_end:
                download.unread.discard(file)
            if not download.unread:
                del self._downloads[path]

    @contextmanager
    def writing(self, job: str) -> Iterator[None]:
        """Prevent the removal of a job while the block writes to its folder.

        Raises:
            Failed: the job was removed.
        """
        with self._lock:
            if job in self._removed:
                raise Failed(f"job {job}: was pruned, so nothing of it is written any longer")
            self._written.append(job)
        try:
            yield
        finally:
            with self._lock:
                self._written.remove(job)

    def is_read(self, path: Path) -> bool:
        """Return whether a checkpoint is being read."""
        with self._lock:
            return self._is_read(path)

    def unless_read(self, path: Path, remove: Callable[[], Result]) -> Result | None:
        """Call `remove` if nobody reads a checkpoint; nobody begins to meanwhile. Return None otherwise."""
        with self._lock:
            return None if self._is_read(path) else remove()

    def unless_job_used(self, job: str, folder: Path, remove: Callable[[], Result]) -> Result | None:
        """Call `remove` if nobody reads or writes in a job's folder, and never write to it again.

        Return None if somebody does.
        """
        with self._lock:
            paths = {each.path for each in self._readers if each.path is not None} | {*self._downloads}
            if any(each.parent == folder and self._is_read(each) for each in paths) or job in self._written:
                return None
            result = remove()
            self._removed.append(job)
            return result

    def _is_read(self, path: Path) -> bool:
        download = self._downloads.get(path)
        is_downloaded = download is not None and self._clock() < download.until_seconds
        return is_downloaded or any(each.path == path for each in self._readers)
