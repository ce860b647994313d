"""Marks that decide which command runs a test: `make test`, `make test-all` or `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection

import pytest


def marks_of(
    case: tuple[str, ...], quick: Collection[tuple[str, ...]], long: Collection[tuple[str, ...]]
) -> list[pytest.MarkDecorator]:
    """Return the marks of one case of a large matrix.

    Args:
        case: one cell of the matrix.
        quick: cells that `make test` runs.
        long: cells that `make test-all` adds.

    Returns:
        No mark, `long`, or `slow` for a cell in neither collection.
    """
    if case in quick:
        return []
    return [pytest.mark.long if case in long else pytest.mark.slow]
