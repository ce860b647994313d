"""Layer normalisation."""

from __future__ import annotations

from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.ops.placing import check_whole_rows
from training.ops.precision import accurate

LAYER_NORM_EPSILON = 1e-5
"""Added to the variance, as in GPT-2. The device library's default, 1e-12, vanishes in bfloat16."""


def layer_norm(tape: Tape, x: Variable, gain: Parameter, bias: Parameter | None = None) -> Variable:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + bias, row by row (arXiv:1607.06450).

    The device library has the gradients (`moreh_layer_norm_backward`).

    Args:
        tape: the tape of this pass.
        x: [1, 1, N, width], mesh dtype, tiles.
        gain: [width].
        bias: [width]; None for none.

    Returns:
        Same shape as `x`.

    Raises:
        ValueError: `gain` or `bias` has another width, which the device library would not report, or tensor-parallel
            devices hold pieces of rows.
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    x_value, gain_value = x.value, gain.value
    shape = list(x_value.shape)
    check_whole_rows("layer_norm", x)
    if gain.shape != (shape[3],) or (bias is not None and bias.shape != gain.shape):
        raise ValueError(
            f"layer_norm: gain of shape {gain.shape} for rows of width {shape[3]}, expected ({shape[3]},)"
        )

    def output(of: list[int]) -> Tensor:
        # The library computes only the outputs that it is given tensors for.
        return tt.empty(of, dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle)

    value, mean, deviation = tt.moreh_layer_norm(
        x_value,
        1,
        LAYER_NORM_EPSILON,
        gain_value,
        None if bias is None else bias.value,
        mean=output(shape[:3]),
        rstd=output(shape[:3]),
        compute_kernel_config=kernel,
    )
    parameter_shape = list(gain.mesh_shape)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = tt.moreh_layer_norm_backward(
            gradient,
            x_value,
            mean,
            deviation,
            1,
            gamma=gain_value,
            input_grad=output(shape),
            gamma_grad=output(parameter_shape),
            beta_grad=None if bias is None else output(parameter_shape),
            compute_kernel_config=kernel,
        )
        return tuple(gradients[:2] if bias is None else gradients)

    return tape.record(value, (x, gain) if bias is None else (x, gain, bias), backward)
