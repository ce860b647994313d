"""What a pass takes of its batch: where it lies on the mesh, and how another batch is put into the same place."""

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
"""From an array of a batch to what is uploaded: a function of it alone."""


@dataclass(frozen=True)
class _Input:
    source: int
    prepare: Prepare
    placements: Placements
    tensor: Any


class KeptInputs:
    """The inputs of a pass that is run again and again, in the order in which it asks for them.

    The first pass uploads them. Before each later one `fill` puts another batch's values into the same tensors.

    Args:
        mesh: to upload to.
        batch: the arrays of the first batch; a pass makes its inputs of these alone.
    """

    def __init__(self, mesh: Mesh, *batch: Array) -> None:
        self._mesh = mesh
        self._batch: tuple[Array, ...] | None = batch
        self._inputs: list[_Input] = []
        self._asked = 0

    def tensor(self, source: Array, prepare: Prepare, dtype: Any, layout: Any, placements: Placements) -> Any:
        """The next input's tensor.

        Raises:
            ValueError: it is made of something else than the batch, or this pass asks for more than the first.
        """
        if self._batch is None:
            if self._asked == len(self._inputs):
                raise ValueError(f"a repeated pass asks for more than its {len(self._inputs)} inputs")
            self._asked += 1
            return self._inputs[self._asked - 1].tensor
        places = [place for place, array in enumerate(self._batch) if array is source]
        if not places:
            raise ValueError(
                "an input of a pass is made of something else than its batch; give the batch's array"
            )
        tensor = upload(self._mesh, prepare(source), dtype=dtype, layout=layout, placements=placements)
        self._inputs.append(_Input(places[0], prepare, placements, tensor))
        return tensor

    def fill(self, *batch: Array) -> None:
        """Put another batch's values into the tensors; the next pass gets these, from the first on."""
        for kept in self._inputs:
            upload_into(self._mesh, kept.tensor, kept.prepare(batch[kept.source]), kept.placements)
        self._batch = None
        self._asked = 0


def as_it_is(array: Array) -> Array:
    """For inputs that need no preparing."""
    return np.asarray(array)
