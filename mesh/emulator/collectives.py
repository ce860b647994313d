"""Collectives over one mesh axis or over all chips. Sums are in float32, in the order of the chips, and round once."""

from __future__ import annotations

import math

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.data_movement import find_axis
from mesh.emulator.tensor import Tensor, check, note_scratch, wrap, wrap_result, wrap_view
from mesh.emulator.types import DataType, FabricConfig, Layout

_TILE = 32
_SCRATCH_OPERANDS = 2
"""Memory that ttnn needs to add up shards, in copies of the operand."""


def all_reduce(input_tensor: Tensor, *, cluster_axis: int | None = None) -> Tensor:
    """Return the sum over the chips along `cluster_axis` (all chips if None), on each of them.

    Accepts float dtypes and int32, any rank and layout. Refuses uint32, which ttnn sums for some shapes only.
    """
    axes = _communicating_axes("all_reduce", input_tensor, cluster_axis)
    if input_tensor.dtype is DataType.UINT32:
        raise RuntimeError("all_reduce: UINT32 is not supported (ttnn sums such tensors of some shapes only)")
    # ttnn scatters the sum, then gathers its shards.
    chips = math.prod(_chips(input_tensor, axis) for axis in axes)
    note_scratch(input_tensor, _SCRATCH_OPERANDS + 1 / chips)
    return wrap_result(input_tensor, _sum(input_tensor, axes))


def all_gather(input_tensor: Tensor, dim: int, *, cluster_axis: int | None = None) -> Tensor:
    """Concatenate the tensors of the chips along `cluster_axis` (all chips if None) in `dim`, on each chip.

    Raises RuntimeError for all chips of a 2-D mesh unless the fabric is 2-D too.
    """
    op = "all_gather"
    axes = _communicating_axes(op, input_tensor, cluster_axis)
    mesh = input_tensor.mesh
    if len(axes) > 1 and mesh is not None and mesh.fabric is not FabricConfig.FABRIC_2D:
        raise RuntimeError(f"{op}: 1D fabric on a 2D mesh_device requires cluster_axis to be set")
    place = find_axis(op, input_tensor, dim)
    array = input_tensor.array
    for axis in reversed(axes):
        chips = _chips(input_tensor, axis)
        pieces = [np.take(array, [chip if array.shape[axis] > 1 else 0], axis=axis) for chip in range(chips)]
        array = np.concatenate(pieces, axis=place)
    return wrap(array, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def reduce_scatter(input_tensor: Tensor, dim: int, *, cluster_axis: int | None = None) -> Tensor:
    """Sum over the chips along `cluster_axis` (all chips if None); each keeps its equal slice of `dim`.

    Raises RuntimeError for a tensor of rank 1 and for a dimension that the chips don't divide.
    """
    op = "reduce_scatter"
    axes = _communicating_axes(op, input_tensor, cluster_axis)
    if input_tensor.array.ndim < 4:
        raise RuntimeError(f"{op}: currently supports rank 2 tensors at minimum, got {input_tensor.shape}")
    place = find_axis(op, input_tensor, dim)
    result = wrap_result(input_tensor, _scatter(op, _sum(input_tensor, axes), input_tensor, place, axes))
    note_scratch(input_tensor, _SCRATCH_OPERANDS)
    return result


def mesh_partition(input_tensor: Tensor, dim: int, cluster_axis: int | None = None) -> Tensor:
    """Return each chip's equal slice of `dim` along `cluster_axis` (all chips if None). Nothing is sent.

    Raises RuntimeError for slices of partial tiles: ttnn slices the padded tensor, and for some shapes silently.
    """
    op = "mesh_partition"
    check(op, input_tensor)
    mesh = input_tensor.mesh
    if cluster_axis not in (None, 0, 1):
        raise RuntimeError(f"{op}: Only support cluster axis of None, 0 or 1, got {cluster_axis}")
    place = find_axis(op, input_tensor, dim)
    requested = (0, 1) if cluster_axis is None else (cluster_axis,)
    axes = tuple(axis for axis in requested if mesh is not None and mesh.shape[axis] > 1)
    if not axes:
        return wrap_view(input_tensor, input_tensor.array)
    array = input_tensor.array
    pieces = _scatter(op, array, input_tensor, place, axes)
    tiled = input_tensor.layout is Layout.TILE and place >= array.ndim - 2
    if tiled and (pieces.shape[place] % _TILE or array.ndim == 3):
        raise RuntimeError(
            f"{op}: slices of {pieces.shape[place]}: Can only slice tilized tensor with begin index aligned to tiles"
        )
    return wrap(pieces, input_tensor.dtype, input_tensor.layout, mesh)


def _communicating_axes(op: str, tensor: Tensor, cluster_axis: int | None) -> tuple[int, ...]:
    """Return the mesh axes to communicate along. Raises RuntimeError without a fabric or with a single chip."""
    check(op, tensor)
    mesh = tensor.mesh
    if mesh is None or mesh.fabric is FabricConfig.DISABLED:
        raise RuntimeError(
            f"{op}: Trying to get un-initialized fabric context; set the fabric before opening the mesh"
        )
    if cluster_axis not in (None, 0, 1):
        raise RuntimeError(f"{op}: Invalid cluster axis {cluster_axis}. Must be 0 or 1")
    requested = (0, 1) if cluster_axis is None else (cluster_axis,)
    axes = tuple(axis for axis in requested if mesh.shape[axis] > 1)
    if not axes:
        raise RuntimeError(
            f"{op}: will only work for num_devices > 1, got 1 along cluster_axis {cluster_axis}"
        )
    return axes


def _chips(tensor: Tensor, axis: int) -> int:
    return 1 if tensor.mesh is None else tensor.mesh.shape[axis]


def _sum(tensor: Tensor, axes: tuple[int, ...]) -> Array:
    """Return the sum over the chips along `axes`, added in row-major order."""
    total = tensor.array
    for axis in reversed(axes):
        chips = _chips(tensor, axis)
        pieces = np.split(total, chips, axis=axis) if total.shape[axis] > 1 else [total] * chips
        total = pieces[0] + pieces[1]
        for piece in pieces[2:]:
            total += piece
    return total


def _scatter(op: str, array: Array, like: Tensor, place: int, axes: tuple[int, ...]) -> Array:
    """Split `array` into equal slices of array axis `place` over the chips along `axes`."""
    chips = [_chips(like, axis) for axis in axes]
    size = array.shape[place]
    if size % int(np.prod(chips)):
        raise RuntimeError(f"{op}: size {size} must be divisible by ring_size {int(np.prod(chips))}")
    for axis, count in zip(axes, chips, strict=True):
        parts = np.split(array, count, axis=place)
        if array.shape[axis] > 1:
            parts = [np.take(part, [chip], axis=axis) for chip, part in enumerate(parts)]
        array = np.concatenate(parts, axis=axis)
    return array
