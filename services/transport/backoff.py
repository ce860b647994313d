"""Waiting times between attempts to connect."""

from __future__ import annotations

import asyncio
import random

from services.timeouts import STANDARD_TIMEOUTS


class Backoff:
    """Waiting times that double up to a limit.

    Each is drawn from the upper half of its range. So the peers of a process that died don't reconnect all at once.

    Args:
        first_seconds: longest first wait.
        max_seconds: longest wait of all.
    """

    def __init__(self, first_seconds: float = 0.2, max_seconds: float = STANDARD_TIMEOUTS.retry) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds

    def set_max(self, max_seconds: float) -> None:
        """Change the longest wait, from now on."""
        self._max_seconds = max_seconds

    def reset(self) -> None:
        """Start from the first waiting time again, after an attempt that succeeded."""
        self._next_seconds = self._first_seconds

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(self.next_seconds())

    def next_seconds(self) -> float:
        """Return the next waiting time, and double the one after it."""
        longest = min(self._next_seconds, self._max_seconds)
        self._next_seconds = 2 * longest
        return longest * random.uniform(0.5, 1.0)
