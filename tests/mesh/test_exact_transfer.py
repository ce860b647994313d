"""Exact copies: every bit of every dtype, each element once, partial sums as they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.exact_transfer import download_exactly, upload_exactly
from mesh.placement import PARTIAL, REPLICATED, ROWS, WHOLE, Placements, sharded
from mesh.transfer import upload


def draw(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_has_the_bits_of_the_mesh_s_dtype(open_emulator: Callable[..., Mesh], dtype: str) -> None:
    mesh = open_emulator((2, 2), dtype, Axes(data=0, tensor=1))
    values = draw((1, 1, 64, 32))
    tensor = upload(mesh, values, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=ROWS)
    copy = download_exactly(mesh, tensor, ROWS)
    assert copy.shape == values.shape, (
        "rows of both data-parallel devices, of one tensor-parallel device each"
    )
    assert copy.dtype == (np.uint16 if dtype == "bfloat16" else np.float32)
    again = download_exactly(mesh, upload_exactly(mesh, copy, copy.shape, ROWS), ROWS)
    assert again.tobytes() == copy.tobytes()
    if dtype == "float32":
        assert copy.tobytes() == values.tobytes()


def test_partial_sums_are_copied_summand_by_summand(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator((2, 2), "float32", Axes(data=0, tensor=1))
    summands = draw((2, 1, 64, 32))
    placements = Placements(PARTIAL, sharded(2))
    tensor = upload_exactly(mesh, summands, summands.shape, placements)
    assert list(tensor.shape) == [1, 1, 32, 32]
    assert download_exactly(mesh, tensor, placements).tobytes() == summands.tobytes()
    total = mesh.tt.get_device_tensors(mesh.tt.all_reduce(tensor, cluster_axis=0))[0].cpu().to_numpy()
    assert np.array_equal(total, summands.sum(0, keepdims=True)[:, :, :32])


def test_copies_of_another_shape_or_dtype_are_refused(mesh: Mesh) -> None:
    copy = draw((1, 1, 32, 32))
    with pytest.raises(ValueError, match=r"float32 \[1, 1, 32, 32\], expected float32 \[1, 1, 64, 32\]"):
        upload_exactly(mesh, copy, (1, 1, 64, 32), WHOLE)
    with pytest.raises(ValueError, match=r"^uint16 \[1, 1, 32, 32\], expected float32"):
        upload_exactly(mesh, copy.astype(np.uint16), copy.shape, Placements(REPLICATED, REPLICATED))
