"""What a training step needs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import upload
from worker.autograd import Parameter, Placement, Tape, Variable

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


def constant(mesh: Mesh, array: Array, dtype: Any) -> Variable:
    """An untrained value, the same on every device, in tiles."""
    return Variable(upload(mesh, array, dtype=dtype, layout=mesh.tt.TILE_LAYOUT), Placement.REPLICATED)


def sharded(mesh: Mesh, array: Array, *, dtype: Any, layout: Any, axis: int) -> Variable:
    """An input whose axis `axis` is split over the data axis of the mesh, if it has one."""
    if mesh.axes.data is None:
        return Variable(upload(mesh, array, dtype=dtype, layout=layout), Placement.REPLICATED)
    value = upload(mesh, array, dtype=dtype, layout=layout, shard_dim_data=axis)
    return Variable(value, Placement.SHARDED)
