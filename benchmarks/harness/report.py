"""How figures are printed."""

from __future__ import annotations

from collections.abc import Sequence


class Skipped(Exception):
    """A figure that can't be measured here; the text says why."""


def report(
    name: str, value: float, bound: float, *details: str, decimals: int = 3, at_least: bool = False
) -> bool:
    """Print a figure with its bound, and under it what it comes from.

    Args:
        name: of the figure.
        value: measured.
        bound: to stay at or below.
        details: absolute values beside a ratio, a line each.
        decimals: of value and bound.
        at_least: the bound is to be reached or passed instead.

    Returns:
        Whether the bound is kept.
    """
    print(
        f"{name}: {value:.{decimals}{'f' if decimals < 6 else 'e'}} (to reach: {'>=' if at_least else '<='} {bound:g})"
    )
    for detail in details:
        print(f"    {detail}")
    print(end="", flush=True)
    return value >= bound if at_least else value <= bound


def milliseconds(values: Sequence[float]) -> str:
    """Median and range of seconds, for people."""
    ordered = sorted(values)
    return f"{1e3 * median(ordered):.1f} ms [{1e3 * ordered[0]:.1f} - {1e3 * ordered[-1]:.1f}], n = {len(ordered)}"


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
