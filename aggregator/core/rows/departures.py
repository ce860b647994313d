"""Workers that leave their rows again and again: for how long the others do without them.

Each loss of a worker has the others wait for it to come back, and each return has a row formed again. So a worker that
crashes or reconnects without end would keep a job from its next step, although the others can compute it. It is left
out for a time, each time twice as long, until a lease has passed its row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.printable import counted
from services.timeouts import Timeouts

MOST_KNOWN = 256
"""Number of workers that are remembered, those that left last."""


class _Departures(NamedTuple):
    """How often a worker has left since a lease passed its row, and when it may have stages again."""

    number: int = 0
    until_seconds: float = 0.0


class DepartedWorkers:
    """Workers that have left rows of a job, by name: one that reconnects has another session.

    Args:
        timeouts: the second departure is followed by a pause of twice `deaf`, which outlasts the others' wait for the
            worker; the longest pause is `unfit`.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._first_seconds, self._longest_seconds = 2 * timeouts.deaf, timeouts.unfit
        self._known: dict[str, _Departures] = {}

    def note(self, name: str, now: float) -> None:
        """Note that a worker has left its row."""
        before = self._known.pop(name, _Departures()).number
        pause_seconds = self._first_seconds * 2.0 ** min(before - 1, 16) if before else 0.0
        self._known[name] = _Departures(before + 1, now + min(pause_seconds, self._longest_seconds))
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self, names: Iterable[str]) -> None:
        """Forget departures of workers, since a lease has passed their row."""
        for name in names:
            self._known.pop(name, None)

    def why_left_out(self, name: str, now: float) -> str:
        """Return why others do without a worker now; empty if they don't."""
        number, until_seconds = self._known.get(name, _Departures())
        if now >= until_seconds:
            return ""
        return f"it left its row {counted(number, 'time')}; it may have stages in {until_seconds - now:.0f} s"
