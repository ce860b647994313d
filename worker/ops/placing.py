"""What operations ask of how their operands lie on the mesh, where going by element is not enough."""

from __future__ import annotations

from mesh.collectives import all_gather
from mesh.device import Mesh
from mesh.placement import REPLICATED, ROWS, WHOLE, Placements
from worker.autograd import Parameter, Tensor, Variable


def rows_of(mesh: Mesh) -> Placements:
    """How activations lie that no tensor-parallel device has a piece of."""
    return WHOLE if mesh.axes.data is None else ROWS


def check_whole_rows(op: str, x: Variable) -> None:
    """Raise ValueError if tensor-parallel devices hold pieces of x: the op needs whole rows."""
    if x.placements.tensor != REPLICATED:
        raise ValueError(
            f"{op}: an operand that lies {x.placements}, expected whole rows on each tensor-parallel device"
        )


def gathered(mesh: Mesh, parameter: Parameter) -> Tensor:
    """A parameter's value as operations use it: put together if it is sharded over the data axis.

    Operations call it in the forward pass and again in the backward pass, so that no whole value is kept in between.
    """
    dim = parameter.placements.data.dim
    return parameter.value if dim is None else all_gather(mesh, parameter.value, mesh.axes.data, dim)
