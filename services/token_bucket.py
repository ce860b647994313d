"""Token bucket: a limit on how much is taken in any time, with bursts. It reads no clock."""

from __future__ import annotations


class TokenBucket:
    """Bucket that a rate refills. In any time, at most rate x time + burst tokens are taken.

    Args:
        rate: tokens a second.
        burst: tokens of a full bucket, which it is at first.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._full_seconds = float("-inf")  # when the bucket is full again

    def seconds_until(self, tokens: float, now_seconds: float) -> float:
        """Return the time until so many tokens may be taken. More than the burst may be taken from a full bucket."""
        full_seconds = max(self._full_seconds, now_seconds)
        spare = max(0.0, self._burst - tokens)
        return max(0.0, full_seconds - now_seconds - spare / self._rate)

    def take(self, tokens: float, now_seconds: float) -> None:
        """Take tokens, for which the caller has waited."""
        self._full_seconds = max(self._full_seconds, now_seconds) + tokens / self._rate
