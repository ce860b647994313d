"""Ratios of pairs that were measured one after the other, so that a machine that slows down changes both sides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

PAIRS = 6
STUDENT_T = 2.571
"""0.975 quantile of Student's t for 5 degrees of freedom, those of 6 pairs."""


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of `PAIRS` pairs, and its 95 % interval."""
    assert len(ratios) == PAIRS
    logs = [math.log(each) for each in ratios]
    middle, half = statistics.fmean(logs), STUDENT_T * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
