"""Chunks whose pieces are arriving: which pieces are kept, and which chunks are whole."""

from __future__ import annotations

from services.tensors.layout import chunk_range
from services.tensors.layout_parts import Piece


class PieceBook:
    """The kept pieces of the chunks of all leases."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, dict[int, int]]] = {}  # by lease and chunk: elements by offset

    def add(self, lease: int, piece: Piece) -> bool:
        """Count a piece as kept; return False if it has been kept already."""
        pieces = self._kept.setdefault(lease, {}).setdefault(piece.chunk, {})
        if piece.offset in pieces:
            return False
        pieces[piece.offset] = piece.elements
        return True

    def take(self, lease: int, chunk: int, elements: int) -> bool:
        """Forget the pieces of a chunk, which are put together; return False if they are not all kept.

        Args:
            lease: id of the lease.
            chunk: index of the chunk.
            elements: number of elements of the layout.
        """
        chunks = self._kept.get(lease, {})
        start, stop = chunk_range(elements, chunk)
        if chunk not in chunks or sum(chunks[chunk].values()) != stop - start:
            return False
        del chunks[chunk]
        if not chunks:
            del self._kept[lease]
        return True

    def forget(self, lease: int) -> bool:
        """Forget all pieces of a lease; return whether there were any."""
        return bool(self._kept.pop(lease, {}))

    def clear(self) -> None:
        """Forget all pieces."""
        self._kept.clear()

    def kept(self) -> set[tuple[int, int, int]]:
        """Return lease, chunk and offset of all kept pieces."""
        return {
            (lease, chunk, offset)
            for lease, chunks in self._kept.items()
            for chunk, pieces in chunks.items()
            for offset in pieces
        }
