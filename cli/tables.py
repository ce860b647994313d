"""Tables of text, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence


def format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned columns, indented."""
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def fit_table(
    rows: Sequence[Sequence[str]], width: int | None, shrinks: Mapping[str, int]
) -> list[str] | None:
    """Return rows with aligned columns that fit a width; None if they can't.

    Args:
        rows: the rows; the first one has the titles.
        width: the width; None for any.
        shrinks: least width of the columns whose cells may be cut, by title. The widest is cut first.
    """
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    surplus = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
    while surplus > 0:
        slack = [size - shrinks.get(title, size) for title, size in zip(rows[0], widths, strict=True)]
        widest = max(range(len(widths)), key=lambda place: widths[place] if slack[place] > 0 else 0)
        if slack[widest] <= 0:
            return None
        widths[widest] -= 1
        surplus -= 1
    return [
        "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_fields(fields: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    """Yield named texts, each aligned behind its name; lines are broken between words to fit a width, if any."""
    indent = max((len(name) for name, _ in fields), default=0) + 2
    for name, text in fields:
        line = f"{name:<{indent}}{text}".rstrip()
        yield from [line] if width is None else wrap(line, width, indent)


def wrap(line: str, width: int | None, indent: int = 4) -> list[str]:
    """Return a line as lines that fit a width, broken between words alone; those after the first are indented."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: max(0, width - 2)] + ".."
