"""Mappers, which place an array over a mesh, and composers, which join the chips' shards to one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.emulator.device import MeshDevice

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PlacementReplicate:
    """Placement of the whole tensor on every chip along a mesh axis."""


@dataclass(frozen=True)
class PlacementShard:
    """Placement of equal slices of dimension `dim` along a mesh axis."""

    dim: int


Placement = PlacementReplicate | PlacementShard


class MeshMapperConfig:
    """One placement per mesh axis: a list, or the dimensions that rows and columns shard, where None replicates.

    Examples: `MeshMapperConfig([placement, placement])`, `MeshMapperConfig(row_dim=None, col_dim=0)`.
    """

    def __init__(
        self,
        placements: Sequence[Placement] | int | None = None,
        col_dim: int | None = None,
        **row: int | None,
    ) -> None:
        if isinstance(placements, Sequence):
            if col_dim is not None or row:
                raise TypeError("MeshMapperConfig(): placements and dimensions exclude each other")
            self.placements = tuple(placements)
            return
        row_dim = row.pop("row_dim", placements)
        if row:
            raise TypeError(f"MeshMapperConfig(): unexpected {sorted(row)}")
        self.placements = tuple(
            PlacementReplicate() if dim is None else PlacementShard(dim) for dim in (row_dim, col_dim)
        )


class MeshComposerConfig:
    """Dimensions to concatenate along, one per mesh axis."""

    def __init__(self, dims: Sequence[int] | int, col_dim: int | None = None) -> None:
        if isinstance(dims, Sequence):
            self.dims = tuple(dims)
        elif col_dim is not None:
            self.dims = (dims, col_dim)
        else:
            raise TypeError(
                "MeshComposerConfig(): expected a list of dimensions, or one for rows and one for columns"
            )


class MeshMapper:
    """Placement of an array over a mesh: one per axis, or equal slices of one dimension over all chips."""

    def __init__(
        self, device: MeshDevice, placements: tuple[Placement, ...], flat_dim: int | None = None
    ) -> None:
        self.device = device
        self.placements = placements
        self.flat_dim = flat_dim

    def place(self, array: Array) -> Array:
        """Return a view [rows or 1, columns or 1, *shape on a chip].

        Raises RuntimeError for a dimension that doesn't exist, that the chips don't divide, or that both axes shard.
        """
        rows, cols = self.device.shape
        if self.flat_dim is not None:
            pieces = _cut(array, self.flat_dim, rows * cols)
            return pieces.reshape(rows, cols, *pieces.shape[1:])
        row_dim, col_dim = (
            placement.dim % array.ndim if isinstance(placement, PlacementShard) else None
            for placement in self.placements
        )
        if row_dim is not None and row_dim == col_dim:
            raise RuntimeError(f"mesh mapper: both mesh axes shard dimension {row_dim}; dims must be unique")
        out = array[np.newaxis] if col_dim is None else _cut(array, col_dim, cols)
        if row_dim is None:
            return out[np.newaxis]
        return _cut(out, row_dim + 1, rows)


class MeshComposer:
    """Concatenation of the chips' tensors: along one dimension per mesh axis, or all along one dimension."""

    def __init__(self, device: MeshDevice, dims: tuple[int, int] | None, flat_dim: int = 0) -> None:
        self.device = device
        self.dims = dims
        self.flat_dim = flat_dim

    def compose(self, array: Array) -> Array:
        """Return a new C-contiguous array. As in ttnn, a replicated tensor yields one copy per chip."""
        rows, cols = self.device.shape
        chips = np.broadcast_to(array, (rows, cols, *array.shape[2:]))
        if self.dims is None:
            return np.concatenate(list(chips.reshape(rows * cols, *array.shape[2:])), axis=self.flat_dim)
        row_dim, col_dim = self.dims
        return np.concatenate([np.concatenate(list(row), axis=col_dim) for row in chips], axis=row_dim)


def _cut(array: Array, dim: int, pieces: int) -> Array:
    """Return a view [pieces, ...] of equal slices of dimension `dim`."""
    if not -array.ndim <= dim < array.ndim:
        raise RuntimeError(f"Invalid dimension index; got dims: {dim}, tensor dimension: {array.ndim}")
    dim %= array.ndim
    size = array.shape[dim]
    if size % pieces or size == 0:
        raise RuntimeError(
            f"mesh mapper: dimension {dim} of size {size} is not divisible over {pieces} chips; "
            "ttnn would leave chips without data or refuse"
        )
    shape = (*array.shape[:dim], pieces, size // pieces, *array.shape[dim + 1 :])
    return np.moveaxis(array.reshape(shape), dim, 0)


def replicate_tensor_to_mesh_mapper(mesh_device: MeshDevice) -> MeshMapper:
    """Return a mapper that places the whole tensor on every chip."""
    return MeshMapper(mesh_device, (PlacementReplicate(), PlacementReplicate()))


def shard_tensor_to_mesh_mapper(mesh_device: MeshDevice, dim: int) -> MeshMapper:
    """Return a mapper that shards dimension `dim` over all chips, in row-major mesh order."""
    return MeshMapper(mesh_device, (), flat_dim=dim)


def create_mesh_mapper(mesh_device: MeshDevice, config: MeshMapperConfig) -> MeshMapper:
    """Return a mapper with one placement per mesh axis. Raises RuntimeError unless there are two."""
    if len(config.placements) != 2:
        raise RuntimeError(
            f"create_mesh_mapper: {len(config.placements)} placements, expected 2: one per mesh axis"
        )
    return MeshMapper(mesh_device, config.placements)


def create_mesh_composer(mesh_device: MeshDevice, config: MeshComposerConfig) -> MeshComposer:
    """Return a composer with one dimension per mesh axis. Raises RuntimeError unless there are two."""
    if len(config.dims) != 2:
        raise RuntimeError(
            f"create_mesh_composer: {len(config.dims)} dimensions, expected 2: one per mesh axis"
        )
    return MeshComposer(mesh_device, (config.dims[0], config.dims[1]))


def concat_mesh_to_tensor_composer(mesh_device: MeshDevice, dim: int) -> MeshComposer:
    """Return a composer that concatenates all chips' tensors along `dim`, in row-major mesh order."""
    return MeshComposer(mesh_device, None, flat_dim=dim)
