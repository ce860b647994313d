"""The wait for a job's workers before its first rows, which then follow from names, and not from who comes first."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.core.membership.members import Member


class Gathering:
    """The wait of a job that begins, or continues after a restart, for the workers that run.

    It is over once as many workers as the job counts can take stages, and none that has connected still opens its data
    stream. Otherwise it is over when no worker has connected for the patience, and at the latest when it has lasted
    that long. Then it is over for good: workers that come later are given what the rows lack.

    Args:
        expected: number of workers that the job counts: its `num_workers`.
        patience_seconds: longest wait.
    """

    def __init__(self, expected: int, patience_seconds: float) -> None:
        self._expected = expected
        self._patience_seconds = patience_seconds
        self._began_seconds: float | None = None
        self._until_seconds = 0.0
        self._arrived = 0
        self._is_over = False

    def update(self, workers: Sequence[Member], now: float) -> bool:
        """Return whether the wait is over.

        Args:
            workers: the workers that can take stages, or will as soon as their data stream is open.
            now: the time, on the monotonic clock.
        """
        if self._is_over or not workers:
            return self._is_over
        if self._began_seconds is None:
            self._began_seconds = now
        newest_seconds = max(each.connected_seconds for each in workers)
        self._until_seconds = min(self._began_seconds, newest_seconds) + self._patience_seconds
        self._arrived = sum(each.has_data_stream for each in workers)
        complete = self._arrived == len(workers) >= self._expected
        self._is_over = complete or now > self._until_seconds
        return self._is_over

    def describe(self, now: float) -> str | None:
        """Return what the job waits for; None if it is over, or has not begun for lack of workers."""
        if self._is_over or self._began_seconds is None:
            return None
        left_seconds = max(0.0, self._until_seconds - now)
        there = f"{self._arrived} of {self._expected} (num_workers) are there"
        return f"waits for workers before it gives out stages: {there}; for {left_seconds:.0f} s at most"
