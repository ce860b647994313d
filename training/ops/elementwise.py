"""Sums and slices that keep the width."""

from __future__ import annotations

from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable
from training.ops.placing import gathered
from training.ops.precision import accurate


def add(tape: Tape, x: Variable, y: Variable) -> Variable:
    """Return x + y for two inputs of one shape; the gradient of each is that of the sum."""
    return tape.record(tape.mesh.tt.add(x.value, y.value), (x, y), lambda gradient: (gradient, gradient))


def add_positions(tape: Tape, x: Variable, positions: Variable) -> Variable:
    """Add row t of `positions` to token t of every sequence.

    Gradients, with y the result: dx = dy, dpositions = the sum of dy over the sequences.

    Args:
        tape: the tape of this pass.
        x: [1, 1, sequences x tokens, width], mesh dtype, tiles.
        positions: [1, 1, tokens, width], trained or constant.

    Returns:
        Same shape as `x`.
    """
    tt = tape.mesh.tt
    flat = list(x.value.shape)
    table = gathered(tape.mesh, positions)
    tokens, width = table.shape[2], flat[3]
    folded = [flat[2] // tokens, 1, tokens, width]
    value = tt.reshape(tt.add(tt.reshape(x.value, folded), table), flat)
    kernel = accurate(tape.mesh)
    positions_wanted = positions.requires_grad

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        if not positions_wanted:
            return gradient, None
        summed = tt.sum(tt.reshape(gradient, folded), dim=0, keepdim=True, compute_kernel_config=kernel)
        return gradient, summed

    return tape.record(value, (x, positions), backward)


def take_rows(tape: Tape, x: Variable, first: int, stop: int) -> Variable:
    """Return rows `first` to `stop` - 1 of `x` [1, 1, N, width]; for generation, so without a gradient."""
    width = x.value.shape[3]
    return Variable(tape.mesh.tt.slice(x.value, [0, 0, first, 0], [1, 1, stop, width]), x.placements)
