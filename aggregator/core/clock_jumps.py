"""A guard against a host's clock that is set forward while the retention deletes by age."""

from __future__ import annotations

JUMP_SECONDS = 3600.0
"""Time by which the host's clock must get ahead between two looks to count as set forward."""
DISTRUST_SECONDS = 86_400.0
"""Time for which ages are not believed after that: a person sees the warning first."""


class ClockJumps:
    """Looks at the host's clock, beside one that nobody sets.

    A wrong clock makes every ended job old at once, and what the retention deletes does not come back. A clock that
    was corrected does so too, rightly, and then the retention is a day late.
    """

    def __init__(self) -> None:
        self._ahead_seconds: float | None = None
        self._distrusted_until_seconds = float("-inf")

    def note(self, unix_seconds: float, elapsed_seconds: float) -> float:
        """Compare the clocks; return by how many seconds the host's was set forward since the last look, 0 for none.

        Args:
            unix_seconds: the host's clock.
            elapsed_seconds: a monotonic clock.
        """
        ahead_seconds = unix_seconds - elapsed_seconds
        before, self._ahead_seconds = self._ahead_seconds, ahead_seconds
        if before is None or ahead_seconds - before <= JUMP_SECONDS:
            return 0.0
        self._distrusted_until_seconds = elapsed_seconds + DISTRUST_SECONDS
        return ahead_seconds - before

    def believes_ages(self, elapsed_seconds: float) -> bool:
        """Return whether ages by the host's clock may decide what is deleted."""
        return elapsed_seconds >= self._distrusted_until_seconds
