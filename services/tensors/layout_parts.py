"""Parts of a layout: the elements that a worker with some stages has, chunk by chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.tensors.layout import CHUNK_ELEMENTS


class Piece(NamedTuple):
    """The elements of one chunk that are in one part.

    Attributes:
        chunk: index of the chunk.
        offset: index of its first element in the layout.
        elements: number of elements.
    """

    chunk: int
    offset: int
    elements: int


def read_piece(part: LayoutPart) -> Piece:
    """Return the piece that a message names as a part of the layout, which is within one chunk."""
    return Piece(part.offset // CHUNK_ELEMENTS, part.offset, part.elements)


def make_piece_header(shared: ChunkHeader, piece: Piece) -> ChunkHeader:
    """Return the header of a piece, from one that has what several share; losses and the like belong to chunk 0."""
    header = ChunkHeader()
    header.CopyFrom(shared)
    header.index, header.offset, header.elements = piece
    if piece.chunk:
        header.ClearField("findings")
    return header


class LayoutParts:
    """Parts of a layout, in ascending order. Parts that touch are joined, so a chunk has as few pieces as possible.

    Args:
        runs: first element, and element after the last, of each part; in ascending order, without overlaps. None of
            them is empty.
    """

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for start, stop in runs:
            if joined and joined[-1][1] == start:
                joined[-1] = joined[-1][0], stop
            else:
                joined.append((start, stop))
        self.runs: Sequence[tuple[int, int]] = tuple(joined)
        chunks = [(stop - 1) // CHUNK_ELEMENTS - start // CHUNK_ELEMENTS + 1 for start, stop in joined]
        self._pieces_before = [0, *accumulate(chunks)]
        self._elements_before = [0, *accumulate(stop - start for start, stop in joined)]

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same elements."""
        return isinstance(other, LayoutParts) and other.runs == self.runs

    def __len__(self) -> int:
        """Return the number of pieces."""
        return self._pieces_before[-1]

    def __getitem__(self, place: int) -> Piece:
        """Return a piece by its place in the order of the layout."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        part = bisect_right(self._pieces_before, place) - 1
        start, stop = self.runs[part]
        chunk = start // CHUNK_ELEMENTS + place - self._pieces_before[part]
        first = max(start, chunk * CHUNK_ELEMENTS)
        return Piece(chunk, first, min(stop, (chunk + 1) * CHUNK_ELEMENTS) - first)

    def to_messages(self) -> list[LayoutPart]:
        """Return the parts as a message carries them; `parse_parts` reads them."""
        return [LayoutPart(offset=start, elements=stop - start) for start, stop in self.runs]

    @property
    def elements(self) -> int:
        """Number of elements of all parts."""
        return self._elements_before[-1]

    def find(self, offset: int) -> int | None:
        """Return the index that an element of the layout has in an array of these parts alone; None if it has none."""
        part = bisect_right(self.runs, offset, key=lambda run: run[0]) - 1
        if part < 0 or offset >= self.runs[part][1]:
            return None
        return self._elements_before[part] + offset - self.runs[part][0]

    def place_from(self, index: int) -> int:
        """Return the place of the first piece that an array of these parts alone has wholly from this index on."""
        part = bisect_right(self._elements_before, index) - 1
        if part == len(self.runs):
            return len(self)
        start, _ = self.runs[part]
        further = index - self._elements_before[part]
        chunks = -(-(start + further) // CHUNK_ELEMENTS) - start // CHUNK_ELEMENTS if further else 0
        return self._pieces_before[part] + chunks

    def places(self, chunks: Sequence[int]) -> list[int]:
        """Return the places of all pieces of some chunks, given in ascending order."""
        found: list[int] = []
        for (start, stop), before in zip(self.runs, self._pieces_before, strict=False):
            first, last = start // CHUNK_ELEMENTS, (stop - 1) // CHUNK_ELEMENTS
            own = chunks[bisect_left(chunks, first) : bisect_right(chunks, last)]
            found += [before + chunk - first for chunk in own]
        return found

    def has(self, piece: Piece) -> bool:
        """Return whether exactly this piece is among them."""
        return self.place_of(piece) is not None

    def place_of(self, piece: Piece) -> int | None:
        """Return the place of a piece; None if exactly this one is not among them."""
        part = bisect_right(self.runs, piece.offset, key=lambda run: run[0]) - 1
        if part < 0:
            return None
        place = self._pieces_before[part] + piece.chunk - self.runs[part][0] // CHUNK_ELEMENTS
        return place if 0 <= place < len(self) and self[place] == piece else None


def parse_parts(parts: Iterable[LayoutPart], elements: int) -> LayoutParts | Refusal:
    """Return the parts that a worker reports, or why they are none of a layout with that many elements."""
    runs, stop = [], 0
    for place, each in enumerate(parts):
        end = each.offset + each.elements
        if each.offset < stop or not each.elements or end > elements:
            return Refusal(
                f"part {place} of its layout has elements {each.offset} to {end}, expected some from {stop} to "
                f"{elements}; give all hosts the same version of Tiermesh"
            )
        runs.append((each.offset, end))
        stop = end
    return LayoutParts(runs)


def join_parts(all_parts: Iterable[LayoutParts]) -> LayoutParts:
    """Return the elements that are in any of several parts, which may overlap."""
    runs: list[tuple[int, int]] = []
    for start, stop in sorted(run for parts in all_parts for run in parts.runs):
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(stop, runs[-1][1])
        else:
            runs.append((start, stop))
    return LayoutParts(runs)


def check_cover(parts_of_workers: Sequence[LayoutParts], elements: int) -> Refusal | None:
    """Return where the parts of a row's workers don't cover a layout exactly once; None if they do."""
    stop = 0
    for start, end in [
        *sorted(run for parts in parts_of_workers for run in parts.runs),
        (elements, elements),
    ]:
        if start != stop:
            return Refusal(
                f"the stages' parts of the layout don't meet at element {stop} of {elements}; "
                "give all hosts the same version of Tiermesh"
            )
        stop = end
    return None
