"""Matrix product with a weight, bias included; in tensor parallel by its columns or by its rows."""

from __future__ import annotations

from mesh.collectives import all_reduce
from mesh.placement import REPLICATED, Placements, sharded
from training.autograd import Parameter, Tape, Tensor, Variable
from training.ops.placing import gathered
from training.ops.precision import accurate


def linear(
    tape: Tape,
    x: Variable,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    transpose_weight: bool = False,
) -> Variable:
    """x @ weight + bias.

    A weight whose outputs are shared out over tensor-parallel devices takes whole rows and gives each device its
    columns of the result. One whose inputs are shared out takes such columns, and gives whole rows, added up over the
    devices. (Megatron-LM, arXiv:1909.08053, section 3.)

    Args:
        tape: of this pass.
        x: [1, 1, N, inputs].
        weight: [inputs, outputs], or [outputs, inputs] with `transpose_weight` (a token embedding as projection).
        bias: [outputs]; shared out if the weight's outputs are.
        transpose_weight: multiply with the transpose; nothing is copied for it.

    Returns:
        [1, 1, N, outputs].

    Raises:
        ValueError: x doesn't lie as the weight wants it.
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    outputs_dim = 2 if transpose_weight else 3
    cut = weight.placements.tensor.dim
    by_inputs = cut is not None and cut != outputs_dim
    if x.placements.tensor != (sharded(3) if by_inputs else REPLICATED):
        raise ValueError(
            f"linear: an operand that lies {x.placements} for a weight that lies {weight.placements}"
        )
    x_value = x.value
    value = tt.linear(
        x_value,
        gathered(mesh, weight),
        bias=None if bias is None or by_inputs else bias.value,
        transpose_b=transpose_weight,
        compute_kernel_config=kernel,
    )
    if by_inputs:
        value = all_reduce(mesh, value, mesh.axes.tensor)
        if bias is not None:
            value = tt.add(value, bias.value)
    x_wanted = x.requires_grad
    bias_shape = None if bias is None else list(bias.value.shape)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dx = None
        if x_wanted:
            dx = tt.matmul(
                gradient,
                gathered(mesh, weight),
                transpose_b=not transpose_weight,
                compute_kernel_config=kernel,
            )
        left, right = (gradient, x_value) if transpose_weight else (x_value, gradient)
        dweight = tt.matmul(left, right, transpose_a=True, compute_kernel_config=kernel)
        if bias_shape is None:
            return dx, dweight
        dbias = tt.sum(gradient, dim=2, keepdim=True, compute_kernel_config=kernel)
        return dx, dweight, tt.reshape(dbias, bias_shape)

    outputs = sharded(3) if cut == outputs_dim else REPLICATED
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return tape.record(value, inputs, backward, Placements(x.placements.data, outputs))
