"""Activations: functions of each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from training.autograd import Tape, Tensor, Variable


class Gelu(Enum):
    """Which form of the function; values are the device library's names."""

    EXACT = "Accurate"
    TANH = "Tanh"


def gelu(tape: Tape, x: Variable, form: Gelu) -> Variable:
    """Element-wise Gaussian error linear unit of x, any shape."""
    tt = tape.mesh.tt
    variant = getattr(tt.GeluVariant, form.value)
    return _elementwise(
        tape,
        x,
        tt.gelu(x.value, variant=variant),
        lambda gradient, x_value: tt.gelu_bw(gradient, x_value, variant=variant),
    )


def relu(tape: Tape, x: Variable) -> Variable:
    """Element-wise maximum of x and 0, any shape."""
    tt = tape.mesh.tt
    return _elementwise(tape, x, tt.relu(x.value), tt.relu_bw)


def silu(tape: Tape, x: Variable) -> Variable:
    """Element-wise x / (1 + exp(-x)), any shape."""
    tt = tape.mesh.tt
    return _elementwise(tape, x, tt.silu(x.value), tt.silu_bw)


def swiglu(tape: Tape, gate: Variable, up: Variable) -> Variable:
    """Element-wise silu(gate) * up of one shape."""
    tt = tape.mesh.tt
    gate_value, up_value = gate.value, up.value
    opened = tt.silu(gate_value)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dgate = tt.silu_bw(tt.multiply(gradient, up_value), gate_value)[0]
        return dgate, tt.multiply(gradient, opened)

    return tape.record(tt.multiply(opened, up_value), (gate, up), backward)


def _elementwise(
    tape: Tape, x: Variable, value: Tensor, gradient_of: Callable[[Tensor, Tensor], list[Tensor]]
) -> Variable:
    """A value whose gradient the library has as a function of the value's gradient and x."""
    x_value = x.value
    return tape.record(value, (x,), lambda gradient: (gradient_of(gradient, x_value)[0],))
