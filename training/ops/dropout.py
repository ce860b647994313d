"""Dropout whose mask follows from a seed, so the backward pass needs no stored mask."""

from __future__ import annotations

from mesh.collectives import all_gather
from mesh.device import Mesh
from mesh.dropout import drop
from mesh.placement import REPLICATED, Placements
from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable


def dropout(tape: Tape, x: Variable, probability: float, site: str) -> Variable:
    """Zero each element with `probability` and scale the rest by 1 / (1 - probability) (arXiv:1207.0580).

    The gradient is the result's gradient under the same mask and scale.

    Args:
        tape: the tape of this pass; without a dropout seed on it, or with probability 0, x is returned.
        x: any shape, mesh dtype, tiles.
        probability: a number in [0, 1).
        site: name of this dropout in the model; with the tape's seed it determines the mask.

    Returns:
        Same shape as `x`.
    """
    if probability == 0 or tape.dropout_seed is None:
        return x
    mesh = tape.mesh
    seed = tape.dropout_seed(site)
    placements = x.placements
    value = masked(mesh, x.value, placements, probability, seed)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (masked(mesh, gradient, placements, probability, seed),)

    return tape.record(value, (x,), backward)


def masked(mesh: Mesh, value: Tensor, placements: Placements, probability: float, seed: int) -> Tensor:
    """Return `value` under the mask of a seed.

    Devices with different elements get different masks; devices with copies of the same elements get the same mask.
    Masks follow from the devices' places in the mesh, so that they are the same on any chips.
    """
    tt = mesh.tt
    copies = mesh.tensor_size == 1 or placements.tensor == REPLICATED
    if not copies or mesh.data_size == 1:
        return drop(mesh, value, probability, seed, own=not copies)
    if mesh.tensor_size == 1:
        return drop(mesh, value, probability, seed, own=True)
    # The library gives all devices one seed, or each its own. For equal masks along one axis of two, each device of
    # that axis makes the mask of a piece, and the pieces are gathered.
    axis = mesh.axes.tensor
    ones = tt.ones_like(tt.mesh_partition(value, 3, cluster_axis=axis))
    return tt.multiply(value, all_gather(mesh, drop(mesh, ones, probability, seed, own=True), axis, 3))
