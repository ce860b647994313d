"""The common part of regression models: batches of samples, and the squared error."""

from __future__ import annotations

from collections.abc import Callable

from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Variable
from training.models.model import Array, batched


def compute_regression_loss(
    tape: Tape, predict: Callable[[Variable], Variable], inputs: Array, targets: Array
) -> Variable:
    """Return the squared error of each sample, averaged over the targets.

    Args:
        tape: the tape of this pass.
        predict: maps [1, 1, samples of one device, features] to [1, 1, samples of one device, targets].
        inputs: float32 [samples, features].
        targets: float32 [samples, targets].

    Returns:
        float32 [1, 1, samples of one device, 1].
    """
    tt = tape.mesh.tt
    tiles = tt.TILE_LAYOUT
    x = batched(tape, inputs, dtype=tape.mesh.dtype, layout=tiles, dim=2, prepare=_four_dimensions)
    y = batched(tape, targets, dtype=tt.float32, layout=tiles, dim=2, prepare=_four_dimensions)
    return ops.squared_error(tape, predict(x), y)


def _four_dimensions(array: Array) -> Array:
    return array[None, None]
