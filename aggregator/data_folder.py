"""The aggregator's `--data-dir`: a folder whose files workers may read by SHA-256, and the index of it.

A scan looks at all files, and hashes those that are new or have changed, one after the other in the background. What
it has hashed is remembered on disk by path, size, time of change and inode, so that a restart hashes nothing again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from services.errors import Refused
from services.input_files import NoSuchFile, open_input_file, read_input_file
from services.printable import printable, printable_path

log = logging.getLogger("tiermesh.aggregator")

MAX_FILES = 100_000
"""Maximum number of files that are looked at."""
SCAN_SECONDS = 60.0
"""Time between two scans."""
SETTLED_SECONDS = 5.0
"""Time for which a file must not have changed before it is hashed: it may be being copied."""
SAVE_SECONDS = 30.0
"""Longest time of hashing whose results a killed process loses, but for the file that it was hashing."""
_BLOCK_BYTES = 4 << 20
_MAX_INDEX_BYTES = 128 << 20


class Stamp(NamedTuple):
    """What changes when a file does: its size in bytes, time of last change in ns, and inode."""

    size: int
    changed_ns: int
    inode: int


class DataFolder:
    """Files of a folder and its subfolders by SHA-256. Links that lead out of the folder are not followed.

    Args:
        folder: the folder.
        index: file that remembers the SHA-256 of files.
        clock: Unix time in seconds.
    """

    def __init__(self, folder: Path, index: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder.resolve()
        self._index = index
        self._clock = clock
        self._lock = threading.Lock()  # guards the two tables
        self._known: dict[Path, tuple[Stamp, str]] = {}  # stamp and SHA-256 by path
        self._paths: dict[str, Path] = {}  # path by SHA-256
        self._saved_seconds, self._is_saved = 0.0, True
        self._is_stopping = False
        self._told = ""

    async def run(self) -> None:
        """Keep the index up to date until cancelled."""
        try:
            await asyncio.to_thread(self._load)
            while True:
                await asyncio.to_thread(self.scan)
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            self._is_stopping = True

    # ---- as a `Library` ----

    def size_of(self, sha256: str) -> int | None:
        """Return the size of a file in bytes; None if it is not in the index, or has changed since."""
        file = self.open(sha256)
        if file is None:
            return None
        with file:
            return os.fstat(file.fileno()).st_size

    def open(self, sha256: str) -> IO[bytes] | None:
        """Return a file, open for reading; None if it is not in the index, or has changed since."""
        with self._lock:
            path = self._paths.get(sha256)
            known = self._known.get(path) if path is not None else None
        if path is None or known is None or known[1] != sha256 or not self._is_inside(path):
            return None
        try:
            file = open_input_file("", path)
        except Refused:
            return None
        if _stamp(os.fstat(file.fileno())) == known[0]:
            return file
        file.close()
        return None

    # ---- the index ----

    def scan(self) -> None:
        """Bring the index up to date. It blocks for as long as new files take to read."""
        listed = dict(self._list())
        with self._lock:
            known = {path: each for path, each in self._known.items() if listed.get(path) == each[0]}
            self._is_saved = self._is_saved and known == self._known
            self._replace(known)
        for path, stamp in sorted(listed.items(), key=lambda each: each[1].size):  # most files are there soon
            settled = self._clock() - stamp.changed_ns / 1e9 > SETTLED_SECONDS
            sha256 = self._hash(path, stamp) if path not in known and settled else None
            if self._is_stopping:
                return
            if sha256 is not None:
                with self._lock:
                    self._known[path], self._paths[sha256] = (stamp, sha256), path
                self._is_saved = False
                if self._clock() - self._saved_seconds > SAVE_SECONDS:
                    self._save()
        if not self._is_saved:
            self._save()

    def _list(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield the regular files of the folder; it looks at `MAX_FILES` files and folders."""
        looked_at = 0
        for folder, _, names in os.walk(self._folder):
            looked_at += 1
            for path in (Path(folder, name) for name in names):
                looked_at += 1
                if looked_at > MAX_FILES:
                    self._tell(f"has more than {MAX_FILES} files and folders; the others are not served")
                    return
                with suppress(OSError):  # removed meanwhile, or a link to nothing
                    status = path.stat()
                    if stat.S_ISREG(status.st_mode) and self._is_inside(path):
                        yield path, _stamp(status)

    def _is_inside(self, path: Path) -> bool:
        """Return whether a path is in the folder, also after its links are followed."""
        return path.resolve().is_relative_to(self._folder)

    def _hash(self, path: Path, stamp: Stamp) -> str | None:
        """Return the SHA-256 of a file; None if it can't be read, changes meanwhile, or the process stops."""
        digest = hashlib.sha256()
        try:
            with open_input_file("", path) as file:
                while block := file.read(_BLOCK_BYTES):
                    if self._is_stopping:
                        return None
                    digest.update(block)
                return digest.hexdigest() if _stamp(os.fstat(file.fileno())) == stamp else None
        except NoSuchFile:
            return None
        except (Refused, OSError) as error:
            self._tell(f"is not served in full: {printable(str(error), 150)}")
            return None

    def _replace(self, known: dict[Path, tuple[Stamp, str]]) -> None:
        self._known = known
        self._paths = {sha256: path for path, (_, sha256) in known.items()}

    def _load(self) -> None:
        """Read what an earlier process has hashed; a damaged index is made again."""
        try:
            record = json.loads(read_input_file("", self._index, _MAX_INDEX_BYTES))
            known = {
                Path(path): (Stamp(int(size), int(changed_ns), int(inode)), str(sha256))
                for path, size, changed_ns, inode, sha256 in record
            }
        except NoSuchFile:
            return
        except (Refused, ValueError, TypeError, OverflowError, RecursionError) as error:
            log.warning(
                "%s is damaged (%s): --data-dir is hashed again",
                printable_path(self._index),
                printable(str(error), 100),
            )
            return
        with self._lock:
            self._replace(known)

    def _save(self) -> None:
        """Write the index; without space for it, the next process hashes again."""
        self._saved_seconds, self._is_saved = self._clock(), True
        with self._lock:
            record = [[str(path), *stamp, sha256] for path, (stamp, sha256) in self._known.items()]
        temporary = self._index.with_name(f".{self._index.name}.new")
        try:
            temporary.write_text(json.dumps(record))
            temporary.replace(self._index)
        except OSError as error:
            self._tell(f"its index can't be written: {error.strerror or error}")

    def _tell(self, text: str) -> None:
        """Log a line, unless it is the one that was logged last."""
        if text != self._told:
            log.warning("--data-dir %s: %s", printable_path(self._folder), text)
            self._told = text


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def check_data_dir(folder: Path) -> None:
    """Check that `--data-dir` is a folder that can be read.

    Raises:
        Refused: it is not.
    """
    if not folder.is_dir():
        raise Refused(
            f"--data-dir {printable_path(folder)}: no such folder; correct the path, or leave it out"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        raise Refused(f"--data-dir {printable_path(folder)}: can't be read; make it readable for this user")
