"""Between numpy and the mesh, around what ttnn gets wrong without a word: float64, read-only arrays, bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh

_UPLOADED = (np.dtype(np.float32), np.dtype(np.uint32), np.dtype(np.int32))


def upload(
    mesh: Mesh, array: npt.NDArray[Any], *, dtype: Any, layout: Any, shard_dim_data: int | None = None
) -> Any:
    """A tensor of `array`'s values, copied to every chip or in equal parts of a dimension along the data axis.

    Args:
        mesh: the mesh.
        array: float32, uint32 or int32, rank 1 or more.
        dtype: the tensor's dtype (of `mesh.tt`); float values are rounded to it.
        layout: the tensor's layout (of `mesh.tt`).
        shard_dim_data: the dimension to split; None replicates. Without a data axis there is nothing to split.

    Raises ValueError for other arrays, and if the chips don't divide the dimension.
    """
    if array.dtype not in _UPLOADED or array.ndim == 0:
        raise ValueError(
            f"upload: {array.dtype} array of rank {array.ndim}, expected float32, uint32 or int32 of rank 1 or more"
        )
    tt = mesh.tt
    floating = dtype in (tt.bfloat16, tt.float32)
    if floating != (array.dtype == np.float32):
        raise ValueError(f"upload: {array.dtype} array for {dtype}; convert it first")
    values = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    if shard_dim_data is None or mesh.axes.data is None:
        mapper = tt.replicate_tensor_to_mesh_mapper(mesh.handle)
    else:
        size = array.shape[shard_dim_data]
        if size % mesh.axes.data_size or size == 0:
            raise ValueError(
                f"upload: dimension {shard_dim_data} of size {size} can't be split over {mesh.axes.data_size} chips"
            )
        placements: list[Any] = [tt.PlacementReplicate(), tt.PlacementReplicate()]
        placements[mesh.axes.data] = tt.PlacementShard(shard_dim_data % array.ndim)
        mapper = tt.create_mesh_mapper(mesh.handle, tt.MeshMapperConfig(placements))
    return tt.Tensor(values, dtype, device=mesh.handle, layout=layout, mesh_mapper=mapper)


def download(mesh: Mesh, tensor: Any) -> npt.NDArray[Any]:
    """The first chip's values in row-major order: all there is of a replicated tensor, read from one chip only.

    float32 for both float dtypes, else the tensor's own dtype.
    """
    values: npt.NDArray[Any] = _to_host(mesh, mesh.tt.get_device_tensors(tensor)[0]).to_numpy()
    return values


def download_shards(mesh: Mesh, tensor: Any, dim: int = 0) -> npt.NDArray[Any]:
    """The values of the chips along the data axis, one behind the other along `dim`, in the order of `upload`."""
    if mesh.axes.data is None:
        return download(mesh, tensor)
    host = _to_host(mesh, tensor)
    values: npt.NDArray[Any] = host.to_numpy(mesh.tt.concat_mesh_to_tensor_composer(mesh.handle, dim))
    return values


def _to_host(mesh: Mesh, tensor: Any) -> Any:
    host = tensor.cpu()
    return mesh.tt.to_dtype(host, mesh.tt.float32) if tensor.dtype == mesh.tt.bfloat16 else host
