"""Durations and numbers in words, with the digits that a reader needs."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def spell_duration(seconds: float) -> str:
    """Return a duration in its two largest units, as in "1 h 12 min", or "2.5 s" for a short one."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    (size, unit), (smaller, smaller_unit) = _find_units(seconds)
    whole = round(seconds / smaller)
    count, rest = divmod(whole, size // smaller)
    return f"{count} {unit}{f' {rest} {smaller_unit}' if rest and size != smaller else ''}"


def short_duration(seconds: float) -> str:
    """Return a duration for a narrow column, as in "1h12m", "3d4h" or "45s"."""
    if seconds < 9.95:
        return f"{max(0, round(seconds))}s"
    return spell_duration(seconds).replace("min", "m").replace(" ", "")


def _find_units(seconds: float) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return the largest unit of a duration, and the next smaller one, to which it is rounded."""
    for place, (size, unit) in enumerate(_UNITS):
        smaller = _UNITS[min(place + 1, len(_UNITS) - 1)]
        if round(seconds / smaller[0]) * smaller[0] >= size:
            return (size, unit), smaller
    return _UNITS[-1], _UNITS[-1]


def spell_number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent up to a million millions, as in "1,230"."""
    if not value:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if not 1e-4 <= abs(rounded) < 1e12:
        return f"{value:.{digits}g}"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}"
    return f"{rounded:.{digits}g}"


def spell_share(share: float) -> str:
    """Return a share in per cent, as in "71 %" or "0.4 %"."""
    return f"{100 * share:.0f} %" if share >= 0.0095 or not share else f"{100 * share:.1g} %"
