"""Sets of a layout's chunks, whose operations take no Python step for each chunk: the largest layout has 2^21."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protos.cluster_pb2 import Range
from services.protocol.bounds import MAX_RUNS

_ABSENT, _PRESENT = b"\0", b"\1"
_INVERTED = bytes.maketrans(_ABSENT + _PRESENT, _PRESENT + _ABSENT)


class ChunkSet:
    """A set of chunk indices below a bound.

    Args:
        chunks: number of chunks of the layout.
    """

    def __init__(self, chunks: int) -> None:
        self._flags = bytearray(chunks)  # 1 for each chunk in the set
        self._count = 0

    @classmethod
    def from_ranges(cls, ranges: Iterable[Range], chunks: int) -> ChunkSet:
        """Return the chunks of ranges from a message, in any order; indices beyond the layout are dropped."""
        made = cls(chunks)
        for each in ranges:
            stop = min(each.first + each.count, chunks)
            if each.first < stop:
                made._flags[each.first : stop] = _PRESENT * (stop - each.first)
        made._count = made._flags.count(_PRESENT)
        return made

    def __len__(self) -> int:
        return self._count

    def __contains__(self, chunk: int) -> bool:
        return 0 <= chunk < len(self._flags) and bool(self._flags[chunk])

    def add(self, chunk: int) -> None:
        """Put a chunk into the set."""
        self._count += not self._flags[chunk]
        self._flags[chunk] = 1

    def discard(self, chunk: int) -> None:
        """Remove a chunk, if it is in the set."""
        if chunk in self:
            self._flags[chunk] = 0
            self._count -= 1

    def clear(self) -> None:
        """Remove all chunks."""
        self._set(bytes(len(self._flags)))

    def complement(self) -> ChunkSet:
        """Return the layout's other chunks."""
        made = ChunkSet(0)
        made._flags, made._count = self._flags.translate(_INVERTED), len(self._flags) - self._count
        return made

    def intersection(self, other: ChunkSet) -> ChunkSet:
        """Return the chunks that are in both sets."""
        made = ChunkSet(len(self._flags))
        made._set(self._joined(other, int.__and__))
        return made

    def update(self, other: ChunkSet) -> None:
        """Add the chunks of another set."""
        self._set(self._joined(other, int.__or__))

    def remove(self, other: ChunkSet) -> None:
        """Remove the chunks of another set."""
        self._set(self._joined(other.complement(), int.__and__))

    def find_last_absent(self, stop: int) -> int:
        """Return the last chunk below `stop` that is not in the set; -1 if there is none."""
        return self._flags.rfind(_ABSENT, 0, stop)

    def runs(self) -> list[range]:
        """Return the chunks as at most `MAX_RUNS` ascending ranges; if there were more, they contain further chunks."""
        return _find_runs(self._flags, _PRESENT, _ABSENT)

    def gaps(self) -> list[range]:
        """Return the layout's other chunks, as `runs` does."""
        return _find_runs(self._flags, _ABSENT, _PRESENT)

    def _joined(self, other: ChunkSet, join: Callable[[int, int], int]) -> bytes:
        joined = join(int.from_bytes(self._flags, "little"), int.from_bytes(other._flags, "little"))
        return joined.to_bytes(len(self._flags), "little")

    def _set(self, flags: bytes) -> None:
        self._flags[:] = flags
        self._count = flags.count(_PRESENT)


def to_ranges(runs: Iterable[range]) -> list[Range]:
    """Return runs of chunks as a message carries them."""
    return [Range(first=each.start, count=len(each)) for each in runs]


def _find_runs(flags: bytearray, inside: bytes, outside: bytes) -> list[range]:
    runs: list[range] = []
    first = flags.find(inside)
    while first >= 0:
        if len(runs) == MAX_RUNS:
            block = -(-len(flags) // MAX_RUNS)
            joined = (inside in flags[start : start + block] for start in range(0, len(flags), block))
            blocks = _find_runs(bytearray(joined), _PRESENT, _ABSENT)
            return [range(each.start * block, min(each.stop * block, len(flags))) for each in blocks]
        stop = flags.find(outside, first)
        stop = len(flags) if stop < 0 else stop
        runs.append(range(first, stop))
        first = flags.find(inside, stop)
    return runs
