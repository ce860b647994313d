"""What a training step needs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import WHOLE, Placements, over_data
from mesh.transfer import upload
from training.autograd import Parameter, Tape, Variable
from training.inputs import Prepare, as_it_is
from training.ops.cache import KeyValueCache

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


class TextModel(Model, Protocol):
    """A model that text can be drawn from."""

    def logits(
        self, tape: Tape, ids: Array, row: int, caches: Sequence[KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """What the model says of the token after one row of `ids`, as [1, 1, 1, vocabulary].

        Args:
            tape: of this pass, not recording; its mesh must be one device.
            ids: uint32 [1, tokens]: a multiple of 32 tokens from position 0 on, or one further token.
            row: of `ids`; what stands behind it is of no effect.
            caches: what `caches` gave, of the tokens before; this pass adds its own to them.
            position: of the first of `ids`.
        """
        ...

    def caches(self, window: int) -> tuple[KeyValueCache, ...]:
        """Empty caches for one sequence of up to `window` tokens, one a block, for `logits`."""
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
