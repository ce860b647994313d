"""Sums: of tensors, and along an axis of the mesh, where they make a partial tensor whole; and copies along an axis.

What goes along an axis takes one that may be None or of one chip (the library refuses those), and gives its operand
back then.
"""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh
from mesh.placement import PARTIAL, REPLICATED, Placement, Placements


def add(mesh: Mesh, one: Any, other: Any) -> Any:
    """The sum of two tensors that lie alike."""
    return mesh.tt.add(one, other)


def all_reduce(mesh: Mesh, tensor: Any, axis: int | None) -> Any:
    """The sum over the devices along `axis`, on each of them."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.all_reduce(tensor, cluster_axis=axis)


def all_gather(mesh: Mesh, tensor: Any, axis: int | None, dim: int) -> Any:
    """The devices' pieces of `dim` along `axis`, put together on each of them."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.all_gather(tensor, dim, cluster_axis=axis)


def reduce_scatter(mesh: Mesh, tensor: Any, axis: int | None, dim: int) -> Any:
    """The sum over the devices along `axis`, of which each keeps its piece of `dim`."""
    if axis is None or mesh.shape[axis] == 1:
        return tensor
    return mesh.tt.reduce_scatter(tensor, dim, cluster_axis=axis)


def settle(mesh: Mesh, tensor: Any, placements: Placements, target: Placements) -> Any:
    """The tensor with its partial sums added up, laid out as `target` says.

    Raises ValueError if that takes more than adding up: a copy where a piece is wanted, or the other way round.
    """
    for axis, now, wanted in (
        (mesh.axes.tensor, placements.tensor, target.tensor),
        (mesh.axes.data, placements.data, target.data),
    ):
        tensor = _settle(mesh, tensor, axis, now, wanted)
    return tensor


def _settle(mesh: Mesh, tensor: Any, axis: int | None, now: Placement, wanted: Placement) -> Any:
    if now == wanted:
        return tensor
    if now == PARTIAL and wanted == REPLICATED:
        return all_reduce(mesh, tensor, axis)
    if now == PARTIAL and wanted.dim is not None:
        return reduce_scatter(mesh, tensor, axis, wanted.dim)
    raise ValueError(f"a {now} tensor where a {wanted} one is wanted")
