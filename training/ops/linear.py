"""Matrix product with a weight and a bias, cut by columns or by rows over tensor-parallel devices."""

from __future__ import annotations

from mesh.collectives import all_reduce
from mesh.placement import REPLICATED, Placements, sharded
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
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
    """Return x @ weight + bias.

    Gradients, with y the result: dx = dy @ weight', dweight = x' @ dy, dbias = the sum of dy's rows.

    Tensor parallelism follows Megatron-LM (arXiv:1909.08053, section 3). A weight whose outputs are cut takes whole
    rows and gives each device its columns of the result. A weight whose inputs are cut takes such columns, and gives
    whole rows, added up over the devices.

    Args:
        tape: the tape of this pass.
        x: [1, 1, N, inputs], mesh dtype, tiles.
        weight: [inputs, outputs], or [outputs, inputs] with `transpose_weight` (a token embedding used as projection).
        bias: [outputs], cut as the weight's outputs are; None for none.
        transpose_weight: whether to multiply with the transpose, which copies nothing.

    Returns:
        [1, 1, N, outputs].

    Raises:
        ValueError: x does not lie on the mesh as the weight needs it.
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    outputs_dim = 2 if transpose_weight else 3
    cut = weight.placements.tensor.dim
    by_inputs = cut is not None and cut != outputs_dim
    if x.placements.tensor != (sharded(3) if by_inputs else REPLICATED):
        raise ValueError(
            f"linear: an operand is placed {x.placements}, which does not fit a weight placed {weight.placements}"
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
