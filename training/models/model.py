"""The interface of a model, for training steps and for generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import WHOLE, Placements, over_data
from mesh.transfer import upload
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.inputs import Prepare, unchanged
from training.ops.cache import KeyValueCache

Array = npt.NDArray[Any]


class Model(Protocol):
    """A model on a mesh. The training step puts the values of its parameters there."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        ...

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """Return the loss of each row of a batch, float32 [1, 1, rows of one device, 1]."""
        ...

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the contents of a checkpoint's `config.json`."""
        ...

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return untrained tensors, by name, that other programs expect in a checkpoint."""
        ...


class RangeModel(Model, Protocol):
    """A model that declares its blocks, built from a range of them; `loss` needs the range of all blocks."""

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def tied_table(self) -> Parameter | None:
        """The first range's token embedding, if the last range has a copy of it; None in other ranges."""
        ...

    @property
    def tied_copy(self) -> Parameter | None:
        """The last range's copy of the token embedding, if that is the projection too; None in other ranges."""
        ...

    def run_blocks(self, tape: Tape, entering: Array | Variable) -> Variable:
        """Run the range's blocks in a training pass, and in the first range what comes before them.

        Args:
            tape: the tape of this pass.
            entering: token ids in the first range, see `loss`; elsewhere the result of the range before this one.

        Returns:
            [1, 1, sequences x tokens of one device, width]; each tensor-parallel device has whole rows.
        """
        ...

    def leave(self, tape: Tape, x: Variable, targets: Array) -> Variable:
        """Return the losses for the last range's result; see `loss`."""
        ...


class TextModel(Model, Protocol):
    """A model that can generate text."""

    def logits(
        self, tape: Tape, ids: Array, row: int, caches: Sequence[KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """Return the logits of the token after one row of `ids`, [1, 1, 1, vocabulary].

        Args:
            tape: the tape of this pass, not recording; its mesh must be one device.
            ids: uint32 [1, tokens]: a multiple of 32 tokens from position 0 on, or one further token.
            row: index in `ids`; later ids have no effect.
            caches: keys and values of earlier tokens, made by `caches`; this pass adds its own.
            position: position of the first of `ids`.
        """
        ...

    def caches(self, window: int) -> tuple[KeyValueCache, ...]:
        """Return empty caches for one sequence of up to `window` tokens, one for each block."""
        ...


def constant(mesh: Mesh, array: Array, dtype: Any, placements: Placements = WHOLE) -> Variable:
    """Put an untrained value on the mesh, in tiles; by default each device has a copy."""
    return Variable(
        upload(mesh, array, dtype=dtype, layout=mesh.tt.TILE_LAYOUT, placements=placements), placements
    )


def batched(
    tape: Tape, source: Array, *, dtype: Any, layout: Any, dim: int, prepare: Prepare = unchanged
) -> Variable:
    """Return an input whose dimension `dim` is shared out over the mesh's data axis, if it has one.

    See `Tape.input` for the arguments.
    """
    placements = WHOLE if tape.mesh.axes.data is None else over_data(dim)
    return tape.input(source, dtype=dtype, layout=layout, placements=placements, prepare=prepare)
