"""Runs of chunk indices, as messages carry them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protos.cluster_pb2 import Range


def to_ranges(chunks: Iterable[int]) -> list[Range]:
    """Chunk indices as the fewest ascending runs."""
    runs: list[Range] = []
    for chunk in sorted(set(chunks)):
        if runs and runs[-1].first + runs[-1].count == chunk:
            runs[-1].count += 1
        else:
            runs.append(Range(first=chunk, count=1))
    return runs


def from_ranges(ranges: Iterable[Range], chunks: int) -> Iterator[int]:
    """The chunk indices of `ranges` that exist in a layout of that many chunks, ascending, each once."""
    following = 0
    for run in sorted(ranges, key=lambda run: run.first):
        stop = min(run.first + run.count, chunks)
        yield from range(max(run.first, following), stop)
        following = max(following, stop)
