"""Log lines that peers can cause, at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

LOG_SECONDS = 10.0
"""Shortest time between two lines of one kind."""
MAX_KINDS = 1000
"""Maximum number of kinds that are remembered, such as peers' names; lines of further ones are left out."""


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
            kind: kind of the line.
        """
        now = self._clock()
        if len(self._next_seconds) >= MAX_KINDS and kind not in self._next_seconds:
            self._next_seconds = {each: end for each, end in self._next_seconds.items() if end > now}
            self._unlogged = {
                each: count for each, count in self._unlogged.items() if each in self._next_seconds
            }
            if len(self._next_seconds) >= MAX_KINDS:
                return None
        if now < self._next_seconds.get(kind, now):
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return None
        self._next_seconds[kind] = now + LOG_SECONDS
        left_out = self._unlogged.pop(kind, 0)
        return f" ({left_out} more since the last such line)" if left_out else ""
