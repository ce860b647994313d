"""A mark on disk that lines of logs are lost and not reported yet, so that a start after kill -9 knows of it."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from services.errors import TiermeshError
from services.runtime.number_file import NumberFile

log = logging.getLogger("tiermesh.aggregator")

_MOST_CHANGES = 1 << 53


class LossMark:
    """The mark of one folder of logs. It can be set on a full disk once it exists.

    Args:
        path: the mark's file. Its number counts how often the mark changed: it is set while the number is odd.
    """

    def __init__(self, path: Path) -> None:
        self._file = NumberFile(path, _MOST_CHANGES, "how often lines of logs were lost and reported")
        self._path = path
        self._warned = False
        self._changes: int | None = None  # None: the file does not exist, or is damaged
        with suppress(TiermeshError):
            self._changes = self._file.read() if path.exists() else None

    @property
    def is_set(self) -> bool:
        """Whether lines were lost and not reported."""
        return bool((self._changes or 0) % 2)

    def prepare(self) -> None:
        """Create the file while there is space; without it, a start after kill -9 knows of no loss."""
        if self._changes is None:
            self._write(0)

    def change(self, *, lost: bool) -> None:
        """Set or clear the mark."""
        if self._changes is not None and lost != self.is_set:
            self._write(self._changes + 1)

    def _write(self, changes: int) -> None:
        try:
            self._file.write(changes)
            self._changes = changes
        except TiermeshError as error:
            if not self._warned:
                log.warning("%s; if the aggregator is killed, lost lines of logs are not reported", error)
            self._warned = True
