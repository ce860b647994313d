"""What planes report of the sums that they were told to stage. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

Report = TypeVar("Report")


class StagedSums(Generic[Report]):
    """The newest report on each chunk of a step's sum.

    A step may start over while reports on its chunks are on their way. So a report counts only if no later order to
    stage the same chunk is still without one.
    """

    def __init__(self) -> None:
        self._pending: Counter[int] = Counter()  # by chunk: orders without a report
        self._reports: dict[int, Report] = {}

    def note_order(self, chunk: int) -> None:
        """Note that the plane of a chunk was told to stage its sum. What it has reported before is void."""
        self._pending[chunk] += 1
        self._reports.pop(chunk, None)

    def note_report(self, chunk: int, report: Report) -> None:
        """Note a plane's report on a chunk, unless a later order makes it void."""
        self._pending[chunk] -= 1
        if not self._pending[chunk]:
            self._reports[chunk] = report

    def has(self, chunk: int) -> bool:
        """Return whether the newest sum of a chunk is staged."""
        return chunk in self._reports

    def take(self, chunks: int) -> list[Report] | None:
        """Return the reports on all chunks of the layout, in its order, and forget them; None if one is missing."""
        if any(chunk not in self._reports for chunk in range(chunks)):
            return None
        reports, self._reports = self._reports, {}
        return [reports[chunk] for chunk in range(chunks)]

    def clear(self) -> None:
        """Forget the reports; those that are on their way are not expected any less."""
        self._reports.clear()

    def reset(self) -> None:
        """Forget reports and orders: all reports on them have come."""
        self._pending.clear()
        self._reports.clear()
