"""Copies of a queue's database: consistent while the queue is in use, and complete or absent under their name."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from services.durable_files import PRIVATE_MODE, new_file
from services.errors import Failed
from services.instrumentation.failpoints import hit_failpoint
from services.printable import printable_path
from services.timeouts import STANDARD_TIMEOUTS

_PAGES_AT_ONCE = 1_024


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database that exists, without transactions of its own.

    Args:
        path: the file.
        mode: `ro` for reading alone; `rw` also finishes or undoes a transaction that a dead process left.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=STANDARD_TIMEOUTS.lock, isolation_level=None)


@contextmanager
def new_queue_file(target: Path) -> Iterator[Path]:
    """Yield the path of an empty temporary file, which only its owner can read.

    If the block succeeds, the file is synchronised and takes the target's name. Otherwise it is removed.

    Raises:
        OSError: the file can't be made or renamed.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with new_file(target, temporary, PRIVATE_MODE):
        yield temporary


def copy_database(source: Path, target: Path, limit_seconds: float = math.inf, mode: str = "rw") -> None:
    """Copy a queue that may be in use into an empty file. No process can write to the queue meanwhile.

    Args:
        source: the queue.
        target: the empty file; it is not synchronised.
        limit_seconds: longest time that writers are kept waiting.
        mode: how to open the queue; see `connect`.

    Raises:
        Failed: it takes longer than the limit.
        sqlite3.Error, OSError: the copy can't be made.
    """
    deadline = time.monotonic() + limit_seconds

    def check_time(_: int, left: int, total: int) -> None:
        hit_failpoint("queue.copy.mid")
        if left and time.monotonic() > deadline:
            raise Failed(
                f"queue {printable_path(source)}: {total - left} of {total} pages copied within {limit_seconds:g} s, "
                "while its aggregator can't write; back it up to a faster disk"
            )

    with closing(connect(source, mode)) as opened, closing(sqlite3.connect(target)) as copy:
        # The file is synchronised as a whole, and removed if anything fails.
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")
        opened.execute("BEGIN")
        opened.execute("SELECT count(*) FROM sqlite_master").fetchone()  # takes the lock for reading
        opened.backup(copy, pages=_PAGES_AT_ONCE, progress=check_time)


def sync_file(path: Path) -> None:
    """Synchronise a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
