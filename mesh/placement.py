"""How a tensor lies over the mesh. The device library labels partial sums wrongly and checks none of this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Placement:
    """Of a tensor over one axis of the mesh: `REPLICATED`, `PARTIAL`, or what `sharded` gives.

    Attributes:
        kind: replicated: each device has the whole. partial: each device has a summand of it. sharded: each device
            has an equal piece of one dimension.
        dim: the dimension that is cut, if it is sharded.
    """

    kind: Literal["replicated", "sharded", "partial"]
    dim: int | None = None

    def __str__(self) -> str:
        return self.kind if self.dim is None else f"sharded({self.dim})"


REPLICATED = Placement("replicated")
PARTIAL = Placement("partial")
_SHARDED = tuple(Placement("sharded", dim) for dim in range(8))


def sharded(dim: int) -> Placement:
    """Equal pieces of dimension `dim` (0 to 7), in the order of the devices."""
    return _SHARDED[dim]


class Placements(NamedTuple):
    """Over the axes that carry the parallel strategies; an axis that a mesh hasn't got counts as one of size 1."""

    data: Placement
    tensor: Placement

    def __str__(self) -> str:
        return f"[data {self.data}, tensor {self.tensor}]"


WHOLE = Placements(REPLICATED, REPLICATED)
"""The whole on every device."""


def over_data(dim: int) -> Placements:
    """Pieces of `dim` over the data axis."""
    return Placements(sharded(dim), REPLICATED)


def over_tensor(dim: int) -> Placements:
    """Pieces of `dim` over the tensor axis."""
    return Placements(REPLICATED, sharded(dim))


ROWS = over_data(2)
"""Activations, [1, 1, N, width]: each data-parallel device has the rows of its own sequences."""
