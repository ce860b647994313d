"""Negative log-likelihood of tokens, also where each tensor-parallel device has a part of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mesh.collectives import all_gather, all_reduce
from mesh.device import Mesh
from mesh.placement import REPLICATED, WHOLE, Placements, over_tensor, sharded
from mesh.transfer import upload
from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable
from training.ops.losses import cross_entropy
from training.ops.precision import accurate
from training.parameter_placement import round_up_to_tiles

_NOT_A_TOKEN = -1e30
"""Added to the logits of padding classes."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a model knows, as constants on the mesh; each tensor-parallel device has its part.

    Attributes:
        classes: uint32 [1, 1, 1, size] with the values 0, 1, 2, ...; comparing a target with them gives a one-hot row.
        padding: float32 [1, 1, 1, size], 0 for tokens and very negative after the last one; None without padding.
    """

    classes: Variable
    padding: Variable | None

    @classmethod
    def on(cls, mesh: Mesh, tokens: int) -> Vocabulary:
        """Make a vocabulary on a mesh, padded as a `Split` pads the table that the logits come from."""
        tt = mesh.tt
        size = round_up_to_tiles(tokens, mesh.tensor_size)
        placements = over_tensor(3) if mesh.tensor_size > 1 else WHOLE
        classes = np.arange(size, dtype=np.uint32).reshape(1, 1, 1, size)

        def constant(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: object) -> Variable:
            value = upload(mesh, array, dtype=dtype, layout=tt.TILE_LAYOUT, placements=placements)
            return Variable(value, placements)

        padding = None
        if size > tokens:
            padding = constant(np.where(classes < tokens, 0, _NOT_A_TOKEN).astype(np.float32), tt.float32)
        return cls(constant(classes, tt.uint32), padding)


def token_loss(tape: Tape, logits: Variable, targets: Variable, vocabulary: Vocabulary) -> Variable:
    """Return the negative log-likelihood of each row's target; see `cross_entropy` for the gradient.

    Args:
        tape: the tape of this pass.
        logits: [1, 1, N, vocabulary], whole, or cut by columns over tensor-parallel devices.
        targets: uint32 [1, 1, N, 1].
        vocabulary: the vocabulary that the logits are about.

    Returns:
        float32 [1, 1, N, 1].
    """
    if logits.placements.tensor == REPLICATED:
        return cross_entropy(tape, logits, targets, vocabulary.classes)
    return _over_devices(tape, logits, targets, vocabulary)


def _over_devices(tape: Tape, logits: Variable, targets: Variable, vocabulary: Vocabulary) -> Variable:
    """Compute the loss where each device has columns of the logits; devices exchange three numbers a row."""
    if logits.placements.tensor != sharded(3):
        raise ValueError(
            f"token_loss: the logits are placed {logits.placements}, expected columns on each device"
        )
    mesh = tape.mesh
    tt = mesh.tt
    axis, kernel = mesh.axes.tensor, accurate(mesh)
    x = tt.typecast(logits.value, tt.float32)
    if vocabulary.padding is not None:
        x = tt.add(x, vocabulary.padding.value)
    # Gathered along dimension 0: the columns are one wide, and collectives need whole tiles.
    largest = tt.max(all_gather(mesh, tt.max(x, dim=3, keepdim=True), axis, 0), dim=0, keepdim=True)
    x = tt.subtract(x, largest)
    one_hot = tt.typecast(tt.eq(targets.value, vocabulary.classes.value), tt.float32)
    picked = tt.sum(tt.multiply(x, one_hot), dim=3, keepdim=True, compute_kernel_config=kernel)
    likelihoods = tt.exp(x)
    total = tt.sum(likelihoods, dim=3, keepdim=True, compute_kernel_config=kernel)
    picked, total = all_reduce(mesh, picked, axis), all_reduce(mesh, total, axis)
    value = tt.subtract(tt.log(total), picked)

    def backward(weight: float) -> tuple[Tensor | None, ...]:
        probabilities = tt.multiply(likelihoods, tt.reciprocal(total))
        return tt.typecast(tt.multiply(tt.subtract(probabilities, one_hot), weight), mesh.dtype), None

    return tape.record(value, (logits, targets), backward, Placements(logits.placements.data, REPLICATED))
