"""Options of a custom model: any plain values, since only the user's own factory knows them."""

from __future__ import annotations

import math
from typing import Any

DEEPEST_OPTION = 20
"""Maximum nesting of an option."""
_LARGEST_NUMBER = 1 << 63


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether an option can be written as JSON, with numbers of 64 bits, and is not nested too deeply.

    YAML's anchors allow values that contain themselves; those can't be written.
    """
    if depth > DEEPEST_OPTION:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(inner, depth + 1) for key, inner in value.items())
    if isinstance(value, list):
        return all(is_plain(inner, depth + 1) for inner in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_LARGEST_NUMBER <= value < _LARGEST_NUMBER
    return value is None or isinstance(value, str)
