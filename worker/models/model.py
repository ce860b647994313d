"""What a training step needs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import WHOLE, Placements, over_data
from mesh.transfer import upload
from worker.autograd import Parameter, Tape, Variable
from worker.inputs import Prepare, as_it_is

Array = npt.NDArray[Any]


class Model(Protocol):
    """A model on a mesh; its parameters' values are uploaded by whoever runs it."""

    def parameters(self) -> Iterator[Parameter]:
        """In order of first use in the forward pass."""
        ...

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """The loss of each row of a batch, float32 [1, 1, rows of one device, 1]."""
        ...

    def hugging_face_config(self) -> dict[str, Any]:
        """What `config.json` of a checkpoint says."""
        ...

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Tensors that checkpoints hold beside the parameters, by name, so that other programs can load them."""
        ...


def constant(mesh: Mesh, array: Array, dtype: Any, placements: Placements = WHOLE) -> Variable:
    """An untrained value in tiles, the same on every device unless told."""
    return Variable(
        upload(mesh, array, dtype=dtype, layout=mesh.tt.TILE_LAYOUT, placements=placements), placements
    )


def batched(
    tape: Tape, source: Array, *, dtype: Any, layout: Any, dim: int, prepare: Prepare = as_it_is
) -> Variable:
    """An input (see `Tape.input`) whose dimension `dim` is shared out over the data axis of the mesh, if it has one."""
    placements = WHOLE if tape.mesh.axes.data is None else over_data(dim)
    return tape.input(source, dtype=dtype, layout=layout, placements=placements, prepare=prepare)
