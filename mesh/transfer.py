"""Transfers between numpy arrays and tensors on the mesh.

They avoid what ttnn silently gets wrong or crashes on: float64 arrays, read-only arrays, bfloat16 reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import PARTIAL, WHOLE, Placement, Placements

Array = npt.NDArray[Any]

_UPLOAD_DTYPES = (np.dtype(np.float32), np.dtype(np.uint32), np.dtype(np.int32))


def upload(mesh: Mesh, array: Array, *, dtype: Any, layout: Any, placements: Placements = WHOLE) -> Any:
    """Return a tensor with the values of `array`, replicated or sharded over the axes of the mesh.

    Args:
        mesh: open mesh.
        array: float32, uint32 or int32 array of rank 1 or more.
        dtype: dtype of the tensor, a constant of `mesh.tt`. Float values are rounded to it.
        layout: layout of the tensor, a constant of `mesh.tt`.
        placements: replicated or sharded placements. Sharding over an axis that the mesh lacks has no effect.

    Raises:
        ValueError: the array has another dtype or rank, or the devices don't divide a sharded dimension.
    """
    if array.dtype not in _UPLOAD_DTYPES or array.ndim == 0:
        raise ValueError(
            f"upload: {array.dtype} array of rank {array.ndim}, expected float32, uint32 or int32 of rank 1 or more"
        )
    tt = mesh.tt
    floating = dtype in (tt.bfloat16, tt.float32)
    if floating != (array.dtype == np.float32):
        raise ValueError(f"upload: {array.dtype} array for {dtype}; convert it first")
    values = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    mapper = _mapper(mesh, array.shape, placements)
    return tt.Tensor(values, dtype, device=mesh.handle, layout=layout, mesh_mapper=mapper)


def upload_into(mesh: Mesh, tensor: Any, array: Array, placements: Placements = WHOLE) -> None:
    """Overwrite the values of a tensor that `upload` made from an array of this shape. Its buffer stays in place."""
    values = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    mapper = _mapper(mesh, array.shape, placements)
    host = mesh.tt.Tensor(values, tensor.dtype, layout=tensor.layout, mesh_mapper=mapper)
    mesh.tt.copy_host_to_device_tensor(host, tensor)


def download(mesh: Mesh, tensor: Any, placements: Placements = WHOLE) -> Array:
    """Return the whole tensor as a row-major array, joined from its shards.

    Each shard is read from one device only. Both float dtypes give float32, others their own dtype.

    Raises:
        ValueError: the tensor is partial.
    """
    row, column = _by_mesh_axis(mesh, placements)
    if PARTIAL in (row, column):
        raise ValueError(
            f"download: a tensor placed {placements} has no values yet; reduce its partial sums first"
        )
    devices = mesh.tt.get_device_tensors(tensor)
    rows = range(mesh.shape[0] if row.dim is not None else 1)
    columns = range(mesh.shape[1] if column.dim is not None else 1)
    pieces = [[_read(mesh, devices[r * mesh.shape[1] + c]) for c in columns] for r in rows]
    return _join([_join(line, column) for line in pieces], row)


def _by_mesh_axis(mesh: Mesh, placements: Placements) -> tuple[Placement, Placement]:
    """Return the placement over rows and the placement over columns of the mesh."""
    found = [WHOLE.data, WHOLE.data]
    if mesh.axes.data is not None:
        found[mesh.axes.data] = placements.data
    if mesh.axes.tensor is not None:
        found[mesh.axes.tensor] = placements.tensor
    return found[0], found[1]


def _mapper(mesh: Mesh, shape: tuple[int, ...], placements: Placements) -> Any:
    tt = mesh.tt
    found: list[Any] = []
    for axis, placement in enumerate(_by_mesh_axis(mesh, placements)):
        if placement == PARTIAL:
            raise ValueError("upload: placement is partial, expected replicated or sharded")
        if placement.dim is None:
            found.append(tt.PlacementReplicate())
            continue
        # ttnn leaves devices without data if the dimension is smaller than the number of devices.
        if (
            placement.dim >= len(shape)
            or shape[placement.dim] % mesh.shape[axis]
            or shape[placement.dim] == 0
        ):
            raise ValueError(
                f"upload: dimension {placement.dim} of {list(shape)} can't be split over {mesh.shape[axis]} devices"
            )
        found.append(tt.PlacementShard(placement.dim))
    if not any(placement.dim is not None for placement in _by_mesh_axis(mesh, placements)):
        return tt.replicate_tensor_to_mesh_mapper(mesh.handle)
    return tt.create_mesh_mapper(mesh.handle, tt.MeshMapperConfig(found))


def _read(mesh: Mesh, piece: Any) -> Array:
    host = piece.cpu()
    if piece.dtype == mesh.tt.bfloat16:
        host = mesh.tt.to_dtype(host, mesh.tt.float32)
    values: Array = host.to_numpy()
    return values


def _join(pieces: list[Array], placement: Placement) -> Array:
    if placement.dim is None:
        return pieces[0]
    return np.concatenate(pieces, axis=placement.dim)
