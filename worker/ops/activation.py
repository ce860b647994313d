"""Gaussian error linear unit."""

from __future__ import annotations

from enum import Enum

from worker.autograd import Tape, Tensor, Variable


class Gelu(Enum):
    """Which form of the function; values are the device library's names."""

    EXACT = "Accurate"
    TANH = "Tanh"


def gelu(tape: Tape, x: Variable, form: Gelu) -> Variable:
    """Element-wise gelu of x, any shape."""
    tt = tape.mesh.tt
    variant = getattr(tt.GeluVariant, form.value)
    x_value = x.value

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (tt.gelu_bw(gradient, x_value, variant=variant)[0],)

    return tape.record(tt.gelu(x_value, variant=variant), (x,), backward)
