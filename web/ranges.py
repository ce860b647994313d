"""Byte ranges of an answer (RFC 9110, section 14), of things whose length may not be known before they are read."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from web.problems import Problem

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.ASCII)


class Range(NamedTuple):
    """A range of bytes.

    Attributes:
        first: first byte; None for the last bytes, `at_end` of them.
        last: last byte; None for all to the end.
        at_end: number of bytes at the end, if `first` is None.
    """

    first: int | None
    last: int | None
    at_end: int = 0

    def within(self, size: int) -> tuple[int, int]:
        """Return first byte and end of the range in something of this size.

        Raises:
            Problem: nothing of it is there.
        """
        if self.first is None:
            first, end = max(0, size - self.at_end), size
        else:
            first, end = self.first, size if self.last is None else min(self.last + 1, size)
        if first >= end:
            raise unsatisfied(size)
        return first, end


def parse_range(text: str | None) -> Range | None:
    """Return the range in a Range header; None for all, which a server may send in place of what it does not know."""
    found = _RANGE.fullmatch((text or "").replace(" ", ""))
    if found is None:
        return None
    if found[3] is not None:
        return Range(None, None, int(found[3]))
    first, last = int(found[1]), int(found[2]) if found[2] else None
    return None if last is not None and last < first else Range(first, last)


def unsatisfied(size: int) -> Problem:
    """Return the answer to a range of which nothing is there."""
    return Problem(
        416,
        "range",
        f"Range: begins behind the end, expected one within {size} bytes; ask again later, or for another",
        headers={"content-range": f"bytes */{size}"},
    )


class Part(NamedTuple):
    """Some bytes of a text, and where they are in it.

    Attributes:
        data: the bytes.
        first: position of the first of them.
        size: size of the whole text; None if it was not read to its end.
    """

    data: bytes
    first: int
    size: int | None

    @property
    def content_range(self) -> str:
        """Value of the Content-Range header."""
        size = "*" if self.size is None else self.size
        return f"bytes {self.first}-{self.first + len(self.data) - 1}/{size}"


async def read_part(pieces: AsyncIterator[bytes], wanted: Range, most_bytes: int) -> Part:
    """Read a range of a text that comes in pieces, of which no more than `most_bytes` are kept.

    Raises:
        Problem: nothing of the range is there.
    """
    if wanted.first is None:
        return await _read_end(pieces, min(wanted.at_end, most_bytes))
    end = (
        wanted.first + most_bytes if wanted.last is None else min(wanted.last + 1, wanted.first + most_bytes)
    )
    position, kept = 0, bytearray()
    async for piece in pieces:
        kept += piece[max(0, wanted.first - position) : max(0, end - position)]
        position += len(piece)
        if position > end:
            return Part(bytes(kept), wanted.first, None)
    if not kept:
        raise unsatisfied(position)
    return Part(bytes(kept), wanted.first, position)


async def _read_end(pieces: AsyncIterator[bytes], count: int) -> Part:
    size, kept = 0, bytearray()
    async for piece in pieces:
        size += len(piece)
        kept += piece
        if len(kept) > 2 * count + len(piece):
            del kept[: len(kept) - count]
    data = bytes(kept[max(0, len(kept) - count) :])
    if not data:
        raise unsatisfied(size)
    return Part(data, size - len(data), size)
