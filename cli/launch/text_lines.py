"""Text files of one entry a line, with comments after `#`, as OpenMPI has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

MOST_BYTES = 256 << 10
"""Largest file; hostfiles and rankfiles have some kilobytes."""


@dataclass(frozen=True)
class TextLine:
    """A line that has an entry.

    Attributes:
        text: the entry, without comment and outer white space.
        number: number of the line, from 1.
        source: name of the file, for errors.
    """

    text: str
    number: int
    source: str

    @property
    def place(self) -> str:
        """File and line, for errors."""
        return f"{self.source} line {self.number}"


def read_lines(path: Path, name: str) -> list[TextLine]:
    """Return the lines of a file that have an entry.

    Args:
        path: path of the file.
        name: what the file is, for errors.

    Raises:
        Refused: the file can't be read, is too large, or is not UTF-8.
    """
    source = printable_path(path)
    try:
        text = read_input_file(name, path, MOST_BYTES).decode("utf-8-sig")  # editors may write a mark
    except UnicodeDecodeError:
        raise Refused(f"{source}: is not text, expected one entry a line; correct the path") from None
    return list(parse_lines(text, source))


def parse_lines(text: str, source: str) -> Iterator[TextLine]:
    """Yield the lines of a text that have an entry."""
    for number, line in enumerate(text.split("\n"), start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            yield TextLine(entry, number, source)
