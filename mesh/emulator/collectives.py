"""Collectives over one mesh axis, reduced in the fixed order of the chips."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check, result, wrap
from mesh.emulator.types import FabricConfig


def all_reduce(input_tensor: Tensor, *, cluster_axis: int | None = None) -> Tensor:
    """The sum over the chips along `cluster_axis`, on each of them."""
    axis, chips = _axis("all_reduce", input_tensor, cluster_axis)
    return result(input_tensor, _sum(input_tensor, axis, chips))


def all_gather(input_tensor: Tensor, dim: int, *, cluster_axis: int | None = None) -> Tensor:
    """The chips' tensors along `cluster_axis`, one behind the other along `dim`, on each of them."""
    axis, chips = _axis("all_gather", input_tensor, cluster_axis)
    array = input_tensor.array
    place = _dimension("all_gather", input_tensor, dim)
    pieces = [np.take(array, [chip if array.shape[axis] > 1 else 0], axis=axis) for chip in range(chips)]
    joined = np.concatenate(pieces, axis=place)
    return wrap(joined, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def reduce_scatter(input_tensor: Tensor, dim: int, *, cluster_axis: int | None = None) -> Tensor:
    """The sum over the chips along `cluster_axis`, of which each keeps its piece of dimension `dim`."""
    axis, chips = _axis("reduce_scatter", input_tensor, cluster_axis)
    place = _dimension("reduce_scatter", input_tensor, dim)
    size = input_tensor.array.shape[place]
    if size % chips:
        raise RuntimeError(
            f"reduce_scatter: dimension {dim} of size {size} must be divisible by ring_size {chips}"
        )
    total = _sum(input_tensor, axis, chips)
    return result(input_tensor, np.concatenate(np.split(total, chips, axis=place), axis=axis))


def _axis(op: str, tensor: Tensor, cluster_axis: int | None) -> tuple[int, int]:
    """The mesh axis and its size. Raises RuntimeError where ttnn fails: no fabric, or a single chip."""
    check(op, tensor)
    mesh = tensor.mesh
    if mesh is None or mesh.fabric is FabricConfig.DISABLED:
        raise RuntimeError(
            f"{op}: Trying to get un-initialized fabric context; set the fabric before opening the mesh"
        )
    if cluster_axis is None:
        wide = [axis for axis, size in enumerate(mesh.shape) if size > 1]
        if len(wide) != 1:
            raise RuntimeError(f"{op}: a mesh of {mesh.shape} requires cluster_axis")
        cluster_axis = wide[0]
    if cluster_axis not in (0, 1):
        raise RuntimeError(f"{op}: cluster_axis {cluster_axis} of a mesh of 2 axes")
    chips = mesh.shape[cluster_axis]
    if chips == 1:
        raise RuntimeError(
            f"{op}: will only work for num_devices > 1, got 1 along cluster_axis {cluster_axis}"
        )
    return cluster_axis, chips


def _dimension(op: str, tensor: Tensor, dim: int) -> int:
    rank = tensor.array.ndim - 2
    if not -rank <= dim < rank:
        raise RuntimeError(f"{op}: dimension {dim} of a tensor of shape {tensor.shape}")
    return dim % rank + 2


def _sum(tensor: Tensor, axis: int, chips: int) -> Array:
    array = tensor.array
    pieces = np.split(array, chips, axis=axis) if array.shape[axis] > 1 else [array] * chips
    total: Array = pieces[0] + pieces[1]
    for piece in pieces[2:]:
        total += piece
    return total
