"""Gated linear unit with the sigmoid-weighted linear unit: silu(gate) * up, where silu(x) = x / (1 + exp(-x))."""

from __future__ import annotations

from training.autograd import Tape, Tensor, Variable


def swiglu(tape: Tape, gate: Variable, up: Variable) -> Variable:
    """Element-wise silu(gate) * up of one shape."""
    tt = tape.mesh.tt
    gate_value, up_value = gate.value, up.value
    opened = tt.silu(gate_value)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dgate = tt.silu_bw(tt.multiply(gradient, up_value), gate_value)[0]
        return dgate, tt.multiply(gradient, opened)

    return tape.record(tt.multiply(opened, up_value), (gate, up), backward)
