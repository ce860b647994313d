"""Root-mean-square normalisation."""

from __future__ import annotations

from training.autograd import Parameter, Tape, Tensor, Variable
from training.ops.placing import check_whole_rows
from training.ops.precision import accurate

EPSILON = 1e-5
"""Added to the mean square, as in Llama."""


def rms_norm(tape: Tape, x: Variable, gain: Parameter) -> Variable:
    """Each row of x to mean square 1, times `gain`.

    The device library has no backward of it. Its backward of layer normalisation, told that the rows' means are 0, is
    that gradient but for one term, the mean of `gradient * gain` over a row, which it takes off and we put back.

    Args:
        tape: of this pass.
        x: [1, 1, N, width].
        gain: [width].

    Returns:
        As `x`.

    Raises:
        ValueError: `gain` is of another width, or devices hold pieces of the rows.
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    check_whole_rows("rms_norm", x)
    x_value, gain_value = x.value, gain.value
    shape, gain_shape = list(x_value.shape), list(gain.mesh_shape)
    width = shape[3]
    if gain.shape != (width,):
        raise ValueError(f"rms norm of width {width} with a gain of shape {gain.shape}")

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        squares = tt.mean(tt.square(x_value), dim=3, keepdim=True, compute_kernel_config=kernel)
        deviation = tt.rsqrt(tt.add(squares, EPSILON))
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

    value = tt.rms_norm(x_value, epsilon=EPSILON, weight=gain_value, compute_kernel_config=kernel)
    return tape.record(value, (x, gain), backward)
