"""How long a call that lasts goes on without the server."""

from __future__ import annotations

import random
import time

from tiermesh.errors import NotYet

_FIRST_SECONDS, _MOST_SECONDS = 0.25, 5.0
"""First and longest pause between two tries."""


class Outage:
    """Counts the time without an answer. A server that has never answered is not waited for.

    Args:
        most_seconds: longest outage that is survived.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._began: float | None = -float("inf")
        self._pause_seconds = _FIRST_SECONDS

    def is_over(self) -> None:
        """Take note that the server has answered."""
        self._began = None
        self._pause_seconds = _FIRST_SECONDS

    def pause_seconds(self, error: NotYet) -> float:
        """Return the time to wait before the next try; raise the error if the outage has lasted too long."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if now - self._began > self._most_seconds:
            raise error
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, _MOST_SECONDS)
        return pause * random.uniform(0.5, 1.0)  # so that many clients don't come back at once
