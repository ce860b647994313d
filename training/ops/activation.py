"""Activation functions, applied to each element."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable


class Gelu(Enum):
    """Form of the Gaussian error linear unit; the values are the device library's names."""

    EXACT = "Accurate"
    TANH = "Tanh"


def gelu(tape: Tape, x: Variable, form: Gelu) -> Variable:
    """Return x * Phi(x) element by element, with Phi the normal distribution function or its tanh form.

    The device library has the gradient (`gelu_bw`). The shape is any, the dtype the mesh's.
    """
    tt = tape.mesh.tt
    variant = getattr(tt.GeluVariant, form.value)
    return _elementwise(
        tape,
        x,
        tt.gelu(x.value, variant=variant),
        lambda gradient, x_value: tt.gelu_bw(gradient, x_value, variant=variant),
    )


def relu(tape: Tape, x: Variable) -> Variable:
    """Return max(x, 0) element by element; the gradient is that of the result where x > 0, else 0."""
    tt = tape.mesh.tt
    return _elementwise(tape, x, tt.relu(x.value), tt.relu_bw)


def silu(tape: Tape, x: Variable) -> Variable:
    """Return x / (1 + exp(-x)) element by element; the device library has the gradient (`silu_bw`)."""
    tt = tape.mesh.tt
    return _elementwise(tape, x, tt.silu(x.value), tt.silu_bw)


def swiglu(tape: Tape, gate: Variable, up: Variable) -> Variable:
    """Return silu(gate) * up element by element, for two inputs of one shape (arXiv:2002.05202).

    Gradients, with y the result: dgate = dy * up * silu'(gate), dup = dy * silu(gate).
    """
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
    """Record an operation whose gradient the library computes from the result's gradient and x."""
    x_value = x.value
    return tape.record(value, (x,), lambda gradient: (gradient_of(gradient, x_value)[0],))
