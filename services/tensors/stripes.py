"""Distribution of a layout over several processes, the shards: shard c mod count has chunk c.

A sender goes through the layout in ascending or descending order. With this distribution it keeps all shards busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.tensors.layout import CHUNK_ELEMENTS, Entry, Layout, chunk_count, chunk_range


@dataclass(frozen=True)
class Stripe:
    """One shard's chunks of a layout: chunk j of the stripe is chunk index + j * count of the layout.

    A stripe's chunks form a flat array of their own, which is cut into chunks like a layout's. This works because
    only the last chunk of a layout can be short.

    Attributes:
        index: index of the stripe, from 0.
        count: number of stripes of the layout.
    """

    index: int = 0
    count: int = 1

    def contains(self, chunk: int) -> bool:
        """Return whether a chunk of the layout is in the stripe."""
        return chunk % self.count == self.index

    def to_local(self, chunk: int) -> int:
        """Return the index within the stripe of a chunk of the layout."""
        return chunk // self.count

    def to_global(self, local: int) -> int:
        """Return the index within the layout of a chunk of the stripe."""
        return self.index + local * self.count

    def chunk_indices(self, elements: int) -> range:
        """Return the indices of the stripe's chunks in a layout of `elements` elements."""
        return range(self.index, chunk_count(elements), self.count)

    def chunk_count(self, elements: int) -> int:
        """Return the number of the stripe's chunks in a layout of `elements` elements."""
        return len(self.chunk_indices(elements))

    def element_count(self, elements: int) -> int:
        """Return the number of the stripe's elements in a layout of `elements` elements."""
        return sum(part.stop - part.start for part, _ in self.ranges(elements))

    def ranges(self, elements: int) -> Iterator[tuple[slice, slice]]:
        """Return each of the stripe's chunks as a range of the layout's array and one of the stripe's."""
        for local in range(self.chunk_count(elements)):
            start, stop = chunk_range(elements, self.to_global(local))
            yield slice(start, stop), slice(local * CHUNK_ELEMENTS, local * CHUNK_ELEMENTS + stop - start)

    def layout_of(self, layout: Layout) -> Layout:
        """Return the stripe's own layout. Its entries are the pieces of parameters that lie in the stripe's chunks."""
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
