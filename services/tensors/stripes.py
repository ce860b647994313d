"""A layout split over several processes: chunk c of the layout is the business of number c mod count.

So whoever sends chunks in the order of the layout, or against it, keeps all of them busy all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.tensors.layout import CHUNK_ELEMENTS, Entry, Layout, chunk_count, chunk_range


@dataclass(frozen=True)
class Stripe:
    """Every count-th chunk of a layout, from chunk `index` on; chunk j of the stripe is chunk index + j * count.

    Only the last chunk of a layout is short, so the chunks of a stripe lie in its own flat array as those of a layout.

    Attributes:
        index: which one, from 0.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    def contains(self, chunk: int) -> bool:
        """Whether a chunk of the layout is one of the stripe."""
        return chunk % self.count == self.index

    def to_local(self, chunk: int) -> int:
        """Number in the stripe of a chunk of the layout that it holds."""
        return chunk // self.count

    def to_global(self, local: int) -> int:
        """Number in the layout of a chunk of the stripe."""
        return self.index + local * self.count

    def chunk_indices(self, elements: int) -> range:
        """The chunks of a layout with that many elements that the stripe holds."""
        return range(self.index, chunk_count(elements), self.count)

    def chunk_count(self, elements: int) -> int:
        """How many these are."""
        return len(self.chunk_indices(elements))

    def element_count(self, elements: int) -> int:
        """Elements of the stripe of a layout with that many elements."""
        return sum(part.stop - part.start for part, _ in self.ranges(elements))

    def ranges(self, elements: int) -> Iterator[tuple[slice, slice]]:
        """Each chunk as a range of the layout, and as one of the stripe."""
        for local in range(self.chunk_count(elements)):
            start, stop = chunk_range(elements, self.to_global(local))
            yield slice(start, stop), slice(local * CHUNK_ELEMENTS, local * CHUNK_ELEMENTS + stop - start)

    def layout_of(self, layout: Layout) -> Layout:
        """The stripe as a layout: of each parameter the pieces in its chunks, decaying as the parameter does."""
        pieces: list[Entry] = []
        entries = iter(layout.entries)
        entry = next(entries, None)
        for part, own in self.ranges(layout.elements):
            while entry is not None and entry.stop <= part.start:
                entry = next(entries, None)
            while entry is not None and entry.offset < part.stop:
                start, stop = max(entry.offset, part.start), min(entry.stop, part.stop)
                if start < stop:
                    name = f"{entry.name}[{start - entry.offset}:{stop - entry.offset}]"
                    offset = own.start + start - part.start
                    pieces.append(Entry(name, (stop - start,), offset, entry.decays, name))
                if entry.stop > part.stop:
                    break
                entry = next(entries, None)
        return Layout(tuple(pieces))
