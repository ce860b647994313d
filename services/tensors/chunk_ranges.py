"""Chunk indices of the ranges that messages carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protos.cluster_pb2 import Range


def from_ranges(ranges: Iterable[Range], chunks: int) -> Iterator[int]:
    """Return the chunk indices of ranges, in ascending order and each once.

    Args:
        ranges: ranges from a message, in any order; they may overlap.
        chunks: number of chunks of the layout; indices beyond it are dropped.
    """
    following = 0
    for run in sorted(ranges, key=lambda run: run.first):
        stop = min(run.first + run.count, chunks)
        yield from range(max(run.first, following), stop)
        following = max(following, stop)
