"""A call of a device module's function as plain data: drawn by hypothesis, shown in a failure, made on any module."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor to make for a call.

    Attributes:
        shape: on each chip.
        dtype, layout: names of the module's constants (layout without `_LAYOUT`).
        sharded: the dimension sharded over the rows of the mesh and the one over its columns, None for replicated.
        below: integer values are below this.
        empty: made by `empty`, as room for a result.
    """

    shape: Shape
    dtype: str = "bfloat16"
    layout: str = "TILE"
    sharded: tuple[int | None, int | None] = (None, None)
    below: int = 2
    empty: bool = False


@dataclass(frozen=True)
class Constant:
    """A constant of the module, by its path."""

    path: str


@dataclass(frozen=True)
class Built:
    """An object that a call makes."""

    call: Call


@dataclass(frozen=True)
class Call:
    """A function of the module, by its path, and its arguments: plain values and what stands for others here."""

    op: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


DEVICE = Constant("device")
"""Stands for the open mesh device."""

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


def made(call: Call, tt: Any, device: Any, mesh: tuple[int, int]) -> Any:
    """Make `call` on module `tt` and a mesh that it opened."""
    function = reduce(getattr, call.op.split("."), tt)
    arguments = [_value(one, tt, device, mesh) for one in call.arguments]
    return function(*arguments, **{name: _value(one, tt, device, mesh) for name, one in call.options.items()})


def whole_shape(operand: Operand, mesh: tuple[int, int]) -> list[int]:
    """The shape of the array that the chips' pieces make up."""
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
        return made(value.call, tt, device, mesh)
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
