"""How tensor-parallel devices share a parameter: what a model says of it, whatever the mesh."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """How tensor-parallel devices share a parameter.

    Attributes:
        dim: of the logical shape, cut into equal pieces, one for each device.
        parts: sizes of what lies side by side along `dim` and is shared out each for itself, such as queries, keys and
            values; empty if it is one thing.
        padded: whether `dim` gets zeros at its end, up to whole tiles for each device.
    """

    dim: int
    parts: tuple[int, ...] = ()
    padded: bool = False
