"""The files of one job's log, which together never exceed a size: its first lines, and its newest ones.

    logs/JOB.jsonl       the first lines
    logs/JOB.end.jsonl   the newest lines, once the first file is full

When the second file is full, its older half is replaced by a line that says how many lines are missing. So a long
log keeps how its job began and how it ended, and the count is on disk for the next start.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from services.caps import MB

END_BYTES = 1 << 20
"""Largest size of the file with the newest lines."""


class CappedLog:
    """The log of one job.

    Args:
        folder: the folder of all logs.
        job: the job's id.
        max_bytes: the largest size of the log. Lines that are appended at once have at most a
            sixteenth of it.
    """

    def __init__(self, folder: Path, job: str, max_bytes: int) -> None:
        self.first = folder / f"{job}.jsonl"
        self.end = folder / f"{job}.end.jsonl"
        self._rewritten = folder / f".{job}.end.jsonl"
        self._max_bytes = max_bytes
        self._end_bytes = min(END_BYTES, max_bytes // 4)
        # Twice, as there are two files with the newest lines while one is rewritten.
        self._first_bytes = max_bytes - 2 * self._end_bytes

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that the log may have, in the order of its lines and then those that are never read."""
        return self.first, self.end, self._rewritten

    @property
    def size_bytes(self) -> int:
        """Size of all files; 0 if there are none."""
        return sum(map(_size, self.paths))

    def remove(self) -> None:
        """Remove all files. Readers that have one open can read it to its end.

        Raises:
            OSError: the disk failed.
        """
        for path in self.paths:
            path.unlink(missing_ok=True)

    def make_room(self, size: int) -> int:
        """Remove lines from the middle of the log if so many bytes don't fit; return how many were removed.

        Raises:
            OSError: the disk does not take the shorter file; nothing was removed.
        """
        if self._path_of_next(size) == self.first or _size(self.end) + size + 1 <= self._end_bytes:
            return 0
        lines = self.end.read_bytes().split(b"\n")[:-1]
        missing = missing_lines(lines[0]) if lines else 0
        if missing:
            del lines[0]
        removed, room = len(lines), self._end_bytes // 2
        while removed and len(lines[removed - 1]) < room:
            removed -= 1
            room -= len(lines[removed]) + 1
        content = b"".join(line + b"\n" for line in (self._missing_line(missing + removed), *lines[removed:]))
        try:
            self._rewritten.write_bytes(content)
        except OSError:
            self._rewritten.unlink(missing_ok=True)
            raise
        self._rewritten.replace(self.end)
        return removed

    def append(self, data: bytes) -> None:
        """Append whole lines, for which there is room.

        Raises:
            OSError: the disk does not take them; the log is as it was.
        """
        path = self._path_of_next(len(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, 2)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    data = b"\n" + data  # a power loss or a full disk has cut the last line off
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def open(self) -> Iterator[tuple[IO[bytes], int]]:
        """Yield each file, open for reading, and its size."""
        for path in (self.first, self.end):
            with suppress(FileNotFoundError):
                file = path.open("rb")
                yield file, os.fstat(file.fileno()).st_size

    def _path_of_next(self, size: int) -> Path:
        """Return the file to which the next lines belong."""
        fits = _size(self.first) + size + 1 <= self._first_bytes
        return self.first if fits and not self.end.exists() else self.end

    def _missing_line(self, lines: int) -> bytes:
        text = (
            f"{lines} lines are missing here: this log has reached its cap of {self._max_bytes / MB:g} MB "
            "(--max-log-mb of the aggregator)"
        )
        return json.dumps(
            {"seconds": round(time.time(), 3), "kind": "missing", "text": text, "lines": lines}
        ).encode()


def missing_lines(line: bytes) -> int:
    """Return the number in a line that says how many are missing; 0 for another line."""
    try:
        found = json.loads(line)
        return max(0, int(found["lines"])) if found["kind"] == "missing" else 0
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
