"""Inputs of a pass that is repeated: they stay in place on the mesh, and each batch is written into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import Placements
from mesh.transfer import upload, upload_into

Array = npt.NDArray[Any]
Prepare = Callable[[Array], Array]
"""Returns the array to upload, given an array of the batch; a function of it alone."""


@dataclass(frozen=True)
class _Input:
    source: int
    prepare: Prepare
    placements: Placements
    tensor: Any


class KeptInputs:
    """The inputs of a pass that is repeated, in the order in which the pass asks for them.

    The first pass uploads them. Before each later pass, `fill` writes another batch's values into the same tensors.

    Args:
        mesh: the mesh to upload to.
        batch: arrays of the first batch; every input must be made of one of them.
    """

    def __init__(self, mesh: Mesh, *batch: Array) -> None:
        self._mesh = mesh
        self._batch: tuple[Array, ...] | None = batch
        self._inputs: list[_Input] = []
        self._asked = 0

    def tensor(self, source: Array, prepare: Prepare, dtype: Any, layout: Any, placements: Placements) -> Any:
        """Return the tensor of the next input.

        Raises:
            ValueError: `source` is not an array of the batch, or this pass asks for more inputs than the first.
        """
        if self._batch is None:
            if self._asked == len(self._inputs):
                raise ValueError(
                    f"a repeated pass asks for more inputs than the first, which had {len(self._inputs)}"
                )
            self._asked += 1
            return self._inputs[self._asked - 1].tensor
        places = [place for place, array in enumerate(self._batch) if array is source]
        if not places:
            raise ValueError(
                "a repeated pass has an input that is no array of its batch, expected one of them"
            )
        tensor = upload(self._mesh, prepare(source), dtype=dtype, layout=layout, placements=placements)
        self._inputs.append(_Input(places[0], prepare, placements, tensor))
        return tensor

    def fill(self, *batch: Array) -> None:
        """Write another batch's values into the tensors, for the next pass."""
        for kept in self._inputs:
            upload_into(self._mesh, kept.tensor, kept.prepare(batch[kept.source]), kept.placements)
        self._batch = None
        self._asked = 0


def unchanged(array: Array) -> Array:
    """Return the array unchanged, for inputs that need no preparation."""
    return np.asarray(array)
