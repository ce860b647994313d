"""Dropout whose mask follows from a seed, so that nothing of it is kept for the backward pass."""

from __future__ import annotations

from mesh.device import Mesh
from worker.autograd import Tape, Tensor, Variable


def dropout(tape: Tape, x: Variable, probability: float, site: str) -> Variable:
    """Zero each element with `probability` and scale the rest by 1 / (1 - probability).

    Args:
        tape: of this pass; without a dropout seed on it (or with probability 0), x comes back.
        x: any shape.
        probability: in [0, 1).
        site: name of this dropout in the model; with the tape's seed it settles the mask.

    Returns:
        As `x`.
    """
    if probability == 0 or tape.dropout_seed is None:
        return x
    mesh = tape.mesh
    seed = tape.dropout_seed(site)
    value = masked(mesh, x.value, probability, seed)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (masked(mesh, gradient, probability, seed),)

    return tape.record(value, (x,), backward)


def masked(mesh: Mesh, value: Tensor, probability: float, seed: int) -> Tensor:
    """`value` under the mask of a seed; each device draws its own, since each has rows of its own."""
    return mesh.tt.experimental.dropout(
        value, probability=probability, scale=1 / (1 - probability), seed=seed, use_per_device_seed=True
    )
