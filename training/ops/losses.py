"""Losses, computed in float32 for every dtype of the model.

A loss has one number a row. `backward` multiplies each by a weight, such as a token's share in the mean. Evaluation
reads the numbers themselves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import download
from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable
from training.ops.precision import accurate


def cross_entropy(tape: Tape, logits: Variable, targets: Variable, classes: Variable) -> Variable:
    """Return the negative log-likelihood of each row's target: -log softmax(logits)[target].

    Gradient, with w the weight of a row: dlogits = w (softmax(logits) - onehot(target)).

    Args:
        tape: the tape of this pass.
        logits: [1, 1, N, vocabulary], mesh dtype, tiles.
        targets: uint32 [1, 1, N, 1], tiles.
        classes: uint32 [1, 1, 1, vocabulary] with the values 0, 1, 2, ...; comparing a target with them gives a
            one-hot row.

    Returns:
        float32 [1, 1, N, 1].
    """
    mesh = tape.mesh
    tt = mesh.tt
    targets_value, classes_value = targets.value, classes.value
    log_probabilities = tt.moreh_logsoftmax(
        tt.typecast(logits.value, tt.float32), 3, compute_kernel_config=accurate(mesh)
    )
    value = tt.neg(tt.gather(log_probabilities, 3, targets_value))

    def backward(weight: float) -> tuple[Tensor | None, ...]:
        one_hot = tt.typecast(tt.eq(targets_value, classes_value), tt.float32)
        difference = tt.subtract(tt.exp(log_probabilities), one_hot)
        del one_hot  # large, and freed before the next one is made
        return tt.typecast(tt.multiply(difference, weight), mesh.dtype), None, None

    return tape.record(value, (logits, targets, classes), backward)


def squared_error(tape: Tape, predictions: Variable, targets: Variable) -> Variable:
    """Return the mean over the columns of each row's squared difference.

    Gradient, with w the weight of a row: dpredictions = 2 w (predictions - targets) / columns.

    Args:
        tape: the tape of this pass.
        predictions: [1, 1, N, columns], mesh dtype, tiles.
        targets: float32 [1, 1, N, columns], tiles.

    Returns:
        float32 [1, 1, N, 1].
    """
    mesh = tape.mesh
    tt = mesh.tt
    columns = predictions.value.shape[3]
    difference = tt.subtract(tt.typecast(predictions.value, tt.float32), targets.value)
    value = tt.mean(tt.square(difference), dim=3, keepdim=True, compute_kernel_config=accurate(mesh))

    def backward(weight: float) -> tuple[Tensor | None, ...]:
        return tt.typecast(tt.multiply(difference, 2 * weight / columns), mesh.dtype), None

    return tape.record(value, (predictions, targets), backward)


def read_losses(mesh: Mesh, losses: Variable) -> npt.NDArray[np.float64]:
    """Return the losses of a batch's rows, sequence by sequence."""
    return download(mesh, losses.value, losses.placements).reshape(-1).astype(np.float64)
