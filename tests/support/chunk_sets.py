"""Sets of chunks from their indices."""

from __future__ import annotations

from collections.abc import Iterable

from protos.cluster_pb2 import Range
from services.tensors.chunk_set import ChunkSet
from services.tensors.chunk_set import to_ranges as runs_to_ranges


def chunk_set(chunks: Iterable[int], of: int) -> ChunkSet:
    """Return these chunks of a layout of so many."""
    made = ChunkSet(of)
    for chunk in chunks:
        made.add(chunk)
    return made


def to_ranges(chunks: Iterable[int]) -> list[Range]:
    """Return these chunks as a message carries them."""
    known = list(chunks)
    return runs_to_ranges(chunk_set(known, max(known, default=-1) + 1).runs())
