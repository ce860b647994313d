"""Progress of the reading of a large file, for a watcher.

A file of ids without a sidecar is read as a whole, which takes minutes, deep inside the loading of a job. So the
watcher belongs to the context, like a logger, and is no argument of every function in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

Watcher = Callable[[Path, int, int], None]
"""Takes the file, the number of bytes read, and its size in bytes."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_reading(watcher: Watcher) -> Iterator[None]:
    """Have a watcher called while files are read inside the block, by this thread."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report_reading(path: Path, read_bytes: int, size_bytes: int) -> None:
    """Tell the watcher, if there is one, how far the reading of a file is."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(path, read_bytes, size_bytes)
