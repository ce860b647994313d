"""Losses, in float32 whatever the dtype of the model: one number a row, to be weighed by the number that `backward`
is given (a token's share in the mean), and read back as they are for evaluation."""

from __future__ import annotations

from training.autograd import Tape, Tensor, Variable
from training.ops.precision import accurate


def cross_entropy(tape: Tape, logits: Variable, targets: Variable, classes: Variable) -> Variable:
    """Negative log-likelihood of each row's target.

    Args:
        tape: of this pass.
        logits: [1, 1, N, vocabulary].
        targets: uint32 [1, 1, N, 1].
        classes: uint32 [1, 1, 1, vocabulary]: 0, 1, 2, ...; with it a target becomes a one-hot row.

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
        return tt.typecast(tt.multiply(difference, weight), mesh.dtype), None, None

    return tape.record(value, (logits, targets, classes), backward)


def squared_error(tape: Tape, predictions: Variable, targets: Variable) -> Variable:
    """Mean over the columns of each row's squared difference.

    Args:
        tape: of this pass.
        predictions: [1, 1, N, columns].
        targets: float32 [1, 1, N, columns].

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
