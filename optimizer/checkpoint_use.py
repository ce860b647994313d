"""Who reads and writes checkpoints at the moment: nothing that is in use is removed. Any thread may call."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from services.errors import Failed

_MOST_REMOVED = 1000
"""Removed jobs that are remembered; one is written to at most by what was queued before it was closed."""

Result = TypeVar("Result")


class Reader:
    """One reader of checkpoints, such as a download.

    Attributes:
        path: the checkpoint that it reads; None before it has chosen one.
    """

    path: Path | None = None


class CheckpointUse:
    """The checkpoints that are read, the job that is written, and the jobs that were removed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            read = any(each.path is not None and each.path.parent == folder for each in self._readers)
            if read or job in self._written:
                return None
            result = remove()
            self._removed.append(job)
            return result

    def _is_read(self, path: Path) -> bool:
        return any(each.path == path for each in self._readers)
