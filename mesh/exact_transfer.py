"""Exact copies of tensors as arrays of the host, which another mesh of the same shape can take.

A copy has the bits of the mesh's dtype and each element once, however many devices hold it. Partial sums are copied as
they are: the summands of the devices lie one after the other.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.placement import PARTIAL, Placement, Placements, sharded
from mesh.transfer import download, upload

ExactArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""Values of a tensor: float32, or the bits of bfloat16 as uint16."""


def exact_dtype(mesh: Mesh) -> np.dtype[Any]:
    """Return the dtype of exact copies: float32, or uint16 for the bits of bfloat16."""
    return np.dtype(np.uint16 if mesh.dtype == mesh.tt.bfloat16 else np.float32)


def download_exactly(mesh: Mesh, tensor: Any, placements: Placements) -> ExactArray:
    """Return a copy of a tensor [1, ...] of the mesh's dtype.

    Where the tensor is partial, dimension 0 of the copy has as many elements as there are devices.
    """
    values = download(mesh, tensor, _stacked(placements))
    if mesh.dtype != mesh.tt.bfloat16:
        return values
    bits: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits


def upload_exactly(mesh: Mesh, copy: ExactArray, shape: tuple[int, ...], placements: Placements) -> Any:
    """Return the tensor, in tiles, that `download_exactly` copied.

    Args:
        mesh: open mesh.
        copy: the copy, for example of another process.
        shape: shape that the copy must have.
        placements: placements of the tensor.

    Raises:
        ValueError: the copy has another shape, or is of a mesh with another dtype.
    """
    dtype = exact_dtype(mesh)
    if copy.shape != shape or copy.dtype != dtype:
        raise ValueError(f"{copy.dtype} {list(copy.shape)}, expected {dtype} {list(shape)}")
    values: npt.NDArray[Any] = copy
    if copy.dtype == np.uint16:
        values = (copy.astype(np.uint32) << 16).view(np.float32)
    return upload(mesh, values, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=_stacked(placements))


def _stacked(placements: Placements) -> Placements:
    return Placements(*(_stack(placement) for placement in placements))


def _stack(placement: Placement) -> Placement:
    return sharded(0) if placement == PARTIAL else placement
