"""Root-mean-square normalisation."""

from __future__ import annotations

from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.ops.placing import check_whole_rows
from training.ops.precision import accurate

RMS_NORM_EPSILON = 1e-5
"""Added to the mean square, as in Llama."""


def rms_norm(tape: Tape, x: Variable, gain: Parameter) -> Variable:
    """Return x / sqrt(mean(x^2) + epsilon) * gain, row by row (arXiv:1910.07467).

    The device library has no backward of it. Its backward of layer normalisation, given row means of 0, differs by one
    term: it subtracts the row's mean of `gradient * gain`, which is added back here.

    Args:
        tape: the tape of this pass.
        x: [1, 1, N, width], mesh dtype, tiles.
        gain: [width].

    Returns:
        Same shape as `x`.

    Raises:
        ValueError: `gain` has another width, or tensor-parallel devices hold pieces of rows.
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    check_whole_rows("rms_norm", x)
    x_value, gain_value = x.value, gain.value
    shape, gain_shape = list(x_value.shape), list(gain.mesh_shape)
    width = shape[3]
    if gain.shape != (width,):
        raise ValueError(
            f"rms_norm: gain of shape {gain.shape} for rows of width {width}, expected ({width},)"
        )

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        squares = tt.mean(tt.square(x_value), dim=3, keepdim=True, compute_kernel_config=kernel)
        deviation = tt.rsqrt(tt.add(squares, RMS_NORM_EPSILON))
        of_rows = tt.reshape(deviation, shape[:3])
        dx, dgain, _ = tt.moreh_layer_norm_backward(
            gradient,
            x_value,
            tt.multiply(of_rows, 0.0),
            of_rows,
            1,
            gamma=gain_value,
            input_grad=tt.empty(shape, dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle),
            gamma_grad=tt.empty(gain_shape, dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle),
            compute_kernel_config=kernel,
        )
        sums = tt.matmul(gradient, gain_value, transpose_b=True, compute_kernel_config=kernel)
        return tt.add(dx, tt.multiply(sums, tt.multiply(deviation, 1 / width))), dgain

    value = tt.rms_norm(x_value, epsilon=RMS_NORM_EPSILON, weight=gain_value, compute_kernel_config=kernel)
    return tape.record(value, (x, gain), backward)
