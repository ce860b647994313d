"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
"""Powers of 1000, as links and disks are sold."""


def format_bytes(size_bytes: int) -> str:
    """Return a size with one decimal, in the unit in which it is at least 1."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    size, power = float(size_bytes), 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}"
