"""Placements of operands, for operations that do not work element by element."""

from __future__ import annotations

from mesh.collectives import all_gather
from mesh.device import Mesh
from mesh.placement import REPLICATED, ROWS, WHOLE, Placements
from training.autograd.variable import Parameter, Tensor, Variable


def rows_of(mesh: Mesh) -> Placements:
    """Return the placements of activations of which every tensor-parallel device has whole rows."""
    return WHOLE if mesh.axes.data is None else ROWS


def check_whole_rows(op: str, x: Variable) -> None:
    """Raise ValueError if tensor-parallel devices hold pieces of x's rows, which the operation can't take."""
    if x.placements.tensor != REPLICATED:
        raise ValueError(
            f"{op}: an operand is placed {x.placements}, expected whole rows on each tensor-parallel device"
        )


def gathered(mesh: Mesh, variable: Variable) -> Tensor:
    """Return a variable's value as operations use it; a parameter that is sharded over the data axis is gathered.

    Operations call it in the forward pass and again in the backward pass, so that no whole parameter is kept in
    between.
    """
    dim = variable.placements.data.dim
    if dim is None or not isinstance(variable, Parameter):
        return variable.value
    return all_gather(mesh, variable.value, mesh.axes.data, dim)
