"""Sums of tensors, and collectives along one axis of the mesh.

Collectives along an axis that is None or has one chip return their operand: ttnn refuses such axes.
"""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh
from mesh.placement import PARTIAL, REPLICATED, Placement, Placements


def add(mesh: Mesh, one: Any, other: Any) -> Any:
    """Return the sum of two tensors with the same placement."""
    return mesh.tt.add(one, other)


def all_reduce(mesh: Mesh, tensor: Any, axis: int | None) -> Any:
    """Return the sum over the devices along `axis`, on each of them."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.all_reduce(tensor, cluster_axis=axis)


def all_gather(mesh: Mesh, tensor: Any, axis: int | None, dim: int) -> Any:
    """Concatenate the shards of `dim` along `axis`, on each device."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.all_gather(tensor, dim, cluster_axis=axis)


def reduce_scatter(mesh: Mesh, tensor: Any, axis: int | None, dim: int) -> Any:
    """Sum over the devices along `axis`; each device keeps its shard of `dim`."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.reduce_scatter(tensor, dim, cluster_axis=axis)


def reduce_partial_sums(mesh: Mesh, tensor: Any, placements: Placements, target: Placements) -> Any:
    """Return the tensor with its partial sums added up, placed as `target`.

    Raises:
        ValueError: the placements differ in more than partial sums, such as replicated against sharded.
    """
    for axis, current, wanted in (
        (mesh.axes.tensor, placements.tensor, target.tensor),
        (mesh.axes.data, placements.data, target.data),
    ):
        tensor = _reduce_along(mesh, tensor, axis, current, wanted)
    return tensor


def _reduce_along(mesh: Mesh, tensor: Any, axis: int | None, current: Placement, wanted: Placement) -> Any:
    if current == wanted:
        return tensor
    if current == PARTIAL and wanted == REPLICATED:
        return all_reduce(mesh, tensor, axis)
    if current == PARTIAL and wanted.dim is not None:
        return reduce_scatter(mesh, tensor, axis, wanted.dim)
    raise ValueError(f"tensor is {current}, expected {wanted}; only partial sums can be reduced")
