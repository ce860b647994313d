"""What GPT-2's weights start from."""

from __future__ import annotations

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights."""


def residual_deviation(blocks: int) -> float:
    """Of weights whose product adds to the residual stream, which has two such summands a block."""
    return float(INITIAL_DEVIATION / (2 * blocks) ** 0.5)
