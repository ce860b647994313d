"""Calls of a device module as plain data: hypothesis draws them, failures show them, any module can run them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor operand of a call.

    Attributes:
        shape: shape on each chip.
        dtype: name of the module's constant, such as `bfloat16`.
        layout: name of the module's constant without `_LAYOUT`.
        sharded: dimensions sharded over rows and over columns of the mesh; None for replicated.
        below: upper bound of integer values, exclusive.
        empty: whether `empty` makes it, as a pre-allocated output.
    """

    shape: Shape
    dtype: str = "bfloat16"
    layout: str = "TILE"
    sharded: tuple[int | None, int | None] = (None, None)
    below: int = 2
    empty: bool = False


@dataclass(frozen=True)
class Constant:
    """Constant of the module, named by its attribute path."""

    path: str


@dataclass(frozen=True)
class Built:
    """Argument that is the result of another call."""

    call: Call


@dataclass(frozen=True)
class Call:
    """Call of a function, named by its attribute path. Arguments are plain values or the placeholders above."""

    op: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


DEVICE = Constant("device")
"""Placeholder for the open mesh device."""

KERNEL = Built(
    Call(
        "WormholeComputeKernelConfig",
        options={
            "math_fidelity": Constant("MathFidelity.HiFi4"),
            "math_approx_mode": False,
            "fp32_dest_acc_en": True,
            "packer_l1_acc": True,
        },
    )
)


def make_call(call: Call, tt: Any, device: Any, mesh: tuple[int, int]) -> Any:
    """Run `call` on module `tt` and a mesh device that it opened."""
    function = reduce(getattr, call.op.split("."), tt)
    arguments = [_value(one, tt, device, mesh) for one in call.arguments]
    return function(*arguments, **{name: _value(one, tt, device, mesh) for name, one in call.options.items()})


def whole_shape(operand: Operand, mesh: tuple[int, int]) -> list[int]:
    """Return the shape of the whole array, of which the chips have shards."""
    shape = list(operand.shape)
    for chips, dim in zip(mesh, operand.sharded, strict=True):
        if dim is not None:
            shape[dim] *= chips
    return shape


def _value(value: Any, tt: Any, device: Any, mesh: tuple[int, int]) -> Any:
    if value is DEVICE:
        return device
    if isinstance(value, Operand):
        return _tensor(value, tt, device, mesh)
    if isinstance(value, Constant):
        return reduce(getattr, value.path.split("."), tt)
    if isinstance(value, Built):
        return make_call(value.call, tt, device, mesh)
    if isinstance(value, (list, tuple)):
        return type(value)(_value(one, tt, device, mesh) for one in value)
    return value


def _tensor(operand: Operand, tt: Any, device: Any, mesh: tuple[int, int]) -> Any:
    dtype = getattr(tt, operand.dtype)
    layout = getattr(tt, f"{operand.layout}_LAYOUT")
    if operand.empty:
        return tt.empty(list(operand.shape), dtype=dtype, layout=layout, device=device)
    shape = whole_shape(operand, mesh)
    count = math.prod(shape)
    if operand.dtype in ("bfloat16", "float32"):
        values = np.linspace(-1, 1, count, dtype=np.float32)
    else:
        values = (np.arange(count) % operand.below).astype(operand.dtype)
    placements = [
        tt.PlacementReplicate() if dim is None else tt.PlacementShard(dim) for dim in operand.sharded
    ]
    mapper = tt.create_mesh_mapper(device, tt.MeshMapperConfig(placements))
    return tt.Tensor(values.reshape(shape), dtype, device=device, layout=layout, mesh_mapper=mapper)
