"""Matrix product with a weight, bias included."""

from __future__ import annotations

from worker.autograd import Parameter, Tape, Tensor, Variable
from worker.ops.precision import accurate


def linear(
    tape: Tape,
    x: Variable,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    transpose_weight: bool = False,
) -> Variable:
    """x @ weight + bias.

    Args:
        tape: of this pass.
        x: [1, 1, N, inputs].
        weight: [inputs, outputs], or [outputs, inputs] with `transpose_weight` (a token embedding as projection).
        bias: [outputs].
        transpose_weight: multiply with the transpose; nothing is copied for it.

    Returns:
        [1, 1, N, outputs].
    """
    tt = tape.mesh.tt
    kernel = accurate(tape.mesh)
    x_value, weight_value = x.value, weight.value
    value = tt.linear(
        x_value,
        weight_value,
        bias=None if bias is None else bias.value,
        transpose_b=transpose_weight,
        compute_kernel_config=kernel,
    )
    x_wanted = x.requires_grad
    bias_shape = None if bias is None else list(bias.mesh_shape)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dx = None
        if x_wanted:
            dx = tt.matmul(
                gradient, weight_value, transpose_b=not transpose_weight, compute_kernel_config=kernel
            )
        left, right = (gradient, x_value) if transpose_weight else (x_value, gradient)
        dweight = tt.matmul(left, right, transpose_a=True, compute_kernel_config=kernel)
        if bias_shape is None:
            return dx, dweight
        dbias = tt.sum(gradient, dim=2, keepdim=True, compute_kernel_config=kernel)
        return dx, dweight, tt.reshape(dbias, bias_shape)

    return tape.record(value, (x, weight) if bias is None else (x, weight, bias), backward)
