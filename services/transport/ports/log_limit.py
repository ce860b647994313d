"""Log lines that peers can cause, at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

LOG_SECONDS = 10.0
"""Shortest time between two lines of one kind."""


class LogLimit:
    """Decides which lines of several kinds are logged, and counts the others.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unlogged: dict[Hashable, int] = {}
        self._next_seconds: dict[Hashable, float] = {}

    def suffix(self, kind: Hashable) -> str | None:
        """Return what to add to a line, with the number of lines left out before it; None to leave it out, too.

        Args:
            kind: kind of the line, of which there must be few.
        """
        now = self._clock()
        if now < self._next_seconds.get(kind, now):
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return None
        self._next_seconds[kind] = now + LOG_SECONDS
        left_out = self._unlogged.pop(kind, 0)
        return f" ({left_out} more since the last such line)" if left_out else ""
