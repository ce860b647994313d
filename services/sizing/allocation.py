"""Bytes that a tensor takes on a chip: pages of whole tiles (or rows), dealt out to the DRAM banks in turn.

Every bank is counted like the one with most pages, as the allocator gives a tensor the same addresses in all banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

TILE = 32
"""Rows and columns of a tile."""
_ALIGNMENT_BYTES = 32


@dataclass(frozen=True)
class Allocator:
    """Sizes of tensors in a memory of several banks.

    Attributes:
        banks: number of DRAM banks.
    """

    banks: int

    def tiled_bytes(self, shape: tuple[int, ...], element_bytes: int) -> int:
        """Return the bytes of a tensor in tile layout, by its shape on the chip."""
        *outer, height, width = (1, 1, *shape)
        pages = prod(outer) * -(-height // TILE) * -(-width // TILE)
        return self._spread(pages, TILE * TILE * element_bytes)

    def row_major_bytes(self, shape: tuple[int, ...], element_bytes: int) -> int:
        """Return the bytes of a tensor in row-major layout, by its shape on the chip."""
        *outer, width = (1, *shape)
        page_bytes = -(-width * element_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self._spread(prod(outer), page_bytes)

    def _spread(self, pages: int, page_bytes: int) -> int:
        return -(-pages // self.banks) * self.banks * page_bytes
