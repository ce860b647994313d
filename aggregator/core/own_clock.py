"""The time by which peers are measured."""

from __future__ import annotations


class OwnClock:
    """A clock that excludes the time in which this process was stopped.

    Workers that seem silent or slow after such a stop are not: their messages wait to be read.

    Args:
        longest_pause_seconds: the longest time between two ticks that does not count as a stop.
    """

    def __init__(self, longest_pause_seconds: float) -> None:
        self._longest_pause_seconds = longest_pause_seconds
        self._born_seconds: float | None = None
        self._last_tick_seconds: float | None = None
        self._last_input_seconds = 0.0
        self._stopped_seconds = 0.0

    def note_input(self, monotonic_seconds: float) -> None:
        """Stop the clock for as long as this process was stopped before this input."""
        if self._born_seconds is None:
            self._born_seconds = monotonic_seconds
        last = self._last_tick_seconds
        if last is not None and monotonic_seconds - last > self._longest_pause_seconds:
            # It ran until the input before, whose time must not come again.
            self._stopped_seconds += monotonic_seconds - max(last, self._last_input_seconds)
            self._last_tick_seconds = monotonic_seconds
        self._last_input_seconds = monotonic_seconds

    def note_tick(self, monotonic_seconds: float) -> None:
        """Note that the process was running at this time."""
        self._last_tick_seconds = monotonic_seconds

    def now(self, monotonic_seconds: float) -> float:
        """Return this clock's time."""
        return monotonic_seconds - self._stopped_seconds

    def lived_seconds(self, monotonic_seconds: float) -> float:
        """Return the time since the first input, stops included."""
        return monotonic_seconds - self._born_seconds if self._born_seconds is not None else 0.0
