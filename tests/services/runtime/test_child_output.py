"""Output of a child process: lines within limits, printable, and a count of what is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from services.protocol.bounds import (
    MOST_PRINTED_LINES,
    PRINTED_BURST_LINES,
    PRINTED_LINE_CHARACTERS,
    PRINTED_LINES_A_SECOND,
)
from services.runtime.child_output import LINES_IN_ALL, OutputReader


class Output:
    """What a reader passes on of what is written to it, at a time that the test sets."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.now_seconds = self.tick_seconds = 0.0
        pipe, self._write = os.pipe()
        self.reader = OutputReader(pipe, self._take, self._clock)

    def _clock(self) -> float:
        self.now_seconds += self.tick_seconds
        return self.now_seconds

    def _take(self, lines: Sequence[str]) -> None:
        self.batches.append(list(lines))

    def read(self, *data: bytes) -> list[str]:
        """Return the lines of pieces of output."""
        for each in data:
            os.write(self._write, each)
        os.close(self._write)
        self.reader.finish()
        return [line for batch in self.batches for line in batch]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"no end", ["no end"]),
        (b"\n \n\nspaced\n", ["spaced"]),
        (b"  indented\n\ttab\n", ["  indented", "    tab"]),
        (b"windows\r\n", ["windows"]),
        (b" 10%\r 50%\r100%\n", ["100%"]),
        (b"\x1b[31mred\x07\xff\n", [r"\x1b[31mred\x07�"]),
        (b"a\0b\n", [r"a\x00b"]),
        ("Größe\n".encode(), ["Größe"]),
    ],
)
def test_lines_are_printable(data: bytes, lines: list[str]) -> None:
    assert Output().read(data) == lines


def test_a_line_may_come_in_pieces() -> None:
    assert Output().read(b"be", b"gun", b" and ended\nnext") == ["begun and ended", "next"]


def test_a_long_line_is_cut_and_the_next_one_is_whole() -> None:
    long, after = Output().read(*[b"x" * 1000] * 40, b"\nafter\n")
    assert len(long) == PRINTED_LINE_CHARACTERS
    assert after == "after"


def test_lines_above_the_rate_are_left_out_and_counted() -> None:
    output = Output()
    lines = output.read(b"".join(b"%d\n" % each for each in range(PRINTED_BURST_LINES + 7)))
    assert lines == [*map(str, range(PRINTED_BURST_LINES)), "(7 lines left out)"]
    assert max(map(len, output.batches)) <= MOST_PRINTED_LINES


def test_they_are_counted_before_the_next_line_too() -> None:
    output = Output()
    os.write(output._write, b"x\n" * (PRINTED_BURST_LINES + 1))
    while sum(map(len, output.batches)) < PRINTED_BURST_LINES:
        pass
    output.now_seconds = 1 / PRINTED_LINES_A_SECOND
    assert output.read(b"later\n")[PRINTED_BURST_LINES:] == ["(1 line left out)", "later"]


def test_a_process_has_a_number_of_lines_in_all() -> None:
    output = Output()

    output.tick_seconds = 1.0
    piece = b"x\n" * 500
    lines = output.read(*[piece] * (LINES_IN_ALL // 500), b"one more\n")
    assert len(lines) == LINES_IN_ALL + 1
    assert lines[-1] == "(1 line left out)"
