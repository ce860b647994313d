"""Losses that workers report, added up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable


def total(losses: Iterable[float]) -> float:
    """Their exact sum, rounded once; NaN if they have none, as infinities of both signs."""
    try:
        return math.fsum(losses)
    except (OverflowError, ValueError):
        return math.nan
