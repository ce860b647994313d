"""What operations ask of how their operands lie on the mesh, where going by element is not enough."""

from __future__ import annotations

from mesh.collectives import all_gather
from mesh.device import Mesh
from mesh.placement import REPLICATED, ROWS, WHOLE, Placements
from training.autograd import Parameter, Tensor, Variable


def rows_of(mesh: Mesh) -> Placements:
    """How activations lie that no tensor-parallel device has a piece of."""
    return WHOLE if mesh.axes.data is None else ROWS


def check_whole_rows(op: str, x: Variable) -> None:
    """Raise ValueError if tensor-parallel devices hold pieces of x: the op needs whole rows."""
    if x.placements.tensor != REPLICATED:
        raise ValueError(
            f"{op}: an operand that lies {x.placements}, expected whole rows on each tensor-parallel device"
        )


def gathered(mesh: Mesh, variable: Variable) -> Tensor:
    """A variable's value as operations use it: a parameter that is sharded over the data axis is put together.

    Operations call it in the forward pass and again in the backward pass, so that no whole parameter is kept between.
    """
    dim = variable.placements.data.dim
    if dim is None or not isinstance(variable, Parameter):
        return variable.value
    return all_gather(mesh, variable.value, mesh.axes.data, dim)
