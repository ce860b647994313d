"""Tables of text, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned columns, indented."""
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
