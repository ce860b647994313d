"""Helpers that put tensors onto an emulated mesh and compare results."""

from __future__ import annotations

from typing import Any

import numpy as np

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import WHOLE, over_data
from mesh.transfer import upload


def tensor(
    mesh: Mesh, values: Any, dtype: Any = None, shard: int | None = None, layout: Any = tt.TILE_LAYOUT
) -> Any:
    """Upload values: floats by default in the mesh's dtype, int32 as int32, other integers as uint32."""
    array = np.array(values)
    placements = WHOLE if shard is None else over_data(shard)
    if array.dtype.kind == "f":
        return upload(
            mesh, array.astype(np.float32), dtype=dtype or mesh.dtype, layout=layout, placements=placements
        )
    kind = tt.int32 if array.dtype == np.int32 else tt.uint32
    number = np.int32 if kind is tt.int32 else np.uint32
    return upload(mesh, array.astype(number), dtype=kind, layout=layout, placements=placements)


def empty(mesh: Mesh, *shape: int) -> Any:
    """Return a pre-allocated output of an op."""
    return tt.empty(list(shape), dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Check that shapes are equal and max|actual - expected| <= tolerance * max|expected|."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * max(1e-30, np.abs(expected).max())
