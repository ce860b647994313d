"""Files that are read again when they change: certificates, keys, lists of tokens and of revoked certificates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from services.errors import Refused
from services.input_files import read_input_file

log = logging.getLogger("tiermesh")

Content = TypeVar("Content")
MAX_FILE_BYTES = 1 << 20
"""Longest file of tokens or revoked certificates that is read."""
Signature = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles(Generic[Content]):
    """Content of some files, which are read again after any of them has changed. It is safe on any thread.

    Files that become unreadable or wrong leave the last good content in place, and are logged once.

    Args:
        paths: the files.
        load: reads them and returns their content; raises Refused for what can't be used.

    Raises:
        Refused: the files can't be used at the start.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], Content]) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._lock = threading.Lock()
        self._signature = self._sign()
        self._content = load()

    def content(self) -> Content:
        """Return the newest content that could be used."""
        with self._lock:
            # Taken before the files are read: a change during the reading is noticed the next time.
            signature = self._sign()
            if signature != self._signature:
                self._signature = signature
                try:
                    self._content = self._load()
                except Refused as refused:
                    log.warning("%s; what was read before stays in use", refused)
                else:
                    log.info("read again, as changed: %s", ", ".join(map(str, self._paths)))
            return self._content

    def _sign(self) -> Signature:
        return tuple(map(_file_signature, self._paths))


def read_small_file(option: str, path: Path) -> str:
    """Return the text of a small regular file.

    Raises:
        Refused: it can't be read, is none, is too long, or is not text.
    """
    try:
        return read_input_file(option, path, MAX_FILE_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise Refused(f"{option} {path}: is not ASCII text; give a text file") from None


def _file_signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
