"""Placements of a tensor over the mesh: replicated, sharded or partial.

ttnn has placements of its own, but labels partial sums wrongly and never checks placements of operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Placement:
    """Placement of a tensor over one mesh axis: `REPLICATED`, `PARTIAL` or `sharded(dim)`.

    Attributes:
        kind: replicated: each device has the whole tensor. partial: each device has one summand of it. sharded:
            each device has an equal slice of one dimension.
        dim: dimension that is sliced; None unless sharded.
    """

    kind: Literal["replicated", "sharded", "partial"]
    dim: int | None = None

    def __str__(self) -> str:
        return self.kind if self.dim is None else f"sharded({self.dim})"


REPLICATED = Placement("replicated")
PARTIAL = Placement("partial")
_SHARDED = tuple(Placement("sharded", dim) for dim in range(8))


def sharded(dim: int) -> Placement:
    """Return the placement with equal slices of dimension `dim` (0 to 7), in the order of the devices."""
    return _SHARDED[dim]


class Placements(NamedTuple):
    """Placement over the data axis and over the tensor axis. A strategy without a mesh axis counts as size 1."""

    data: Placement
    tensor: Placement

    def __str__(self) -> str:
        return f"[data {self.data}, tensor {self.tensor}]"


WHOLE = Placements(REPLICATED, REPLICATED)
"""Placements of a tensor that every device has whole."""


def over_data(dim: int) -> Placements:
    """Return placements with `dim` sharded over the data axis."""
    return Placements(sharded(dim), REPLICATED)


def over_tensor(dim: int) -> Placements:
    """Return placements with `dim` sharded over the tensor axis."""
    return Placements(REPLICATED, sharded(dim))


ROWS = over_data(2)
"""Placements of activations [1, 1, N, width]: each data-parallel device has the rows of its own sequences."""
