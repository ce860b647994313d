from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.emulator.rounding import round_to_bfloat16
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


@pytest.mark.parametrize("shape", [(1, 8), (4, 1)])
def test_all_reduce(
    open_emulator: Callable[..., Mesh], numbers: np.random.Generator, shape: tuple[int, int]
) -> None:
    mesh = open_emulator(shape)
    chips = mesh.data_size
    x = numbers.standard_normal((chips * 2, 3)).astype(np.float32)
    total = tt.all_reduce(tensor(mesh, x, shard=0), cluster_axis=mesh.axes.data)
    pieces = x.reshape(chips, 2, 3)
    expected = pieces[0]
    for piece in pieces[1:]:  # Added in the order of the chips, so bits are equal.
        expected = expected + piece
    assert np.array_equal(download(mesh, total), expected)
    assert total.array.shape[:2] == (1, 1)
    replicated = tt.all_reduce(tensor(mesh, x), cluster_axis=mesh.axes.data)
    assert_close(download(mesh, replicated), x * chips, 1e-6)


def test_all_reduce_rounds_once(open_emulator: Callable[..., Mesh], numbers: np.random.Generator) -> None:
    mesh = open_emulator((1, 8), "bfloat16")
    x = round_to_bfloat16(numbers.standard_normal((8, 32)).astype(np.float32))
    total = download(mesh, tt.all_reduce(tensor(mesh, x, shard=0), cluster_axis=1))
    assert_close(total, round_to_bfloat16(x.sum(0, keepdims=True)), 0.01)


def test_gather_and_scatter(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((8, 16)).astype(np.float32)
    gathered = tt.all_gather(tensor(loudbox, x, shard=0), 0, cluster_axis=1)
    assert np.array_equal(download(loudbox, gathered), x)
    scattered = tt.reduce_scatter(tensor(loudbox, x, shard=0), 1, cluster_axis=1)
    assert scattered.shape == (1, 2)
    assert_close(download(loudbox, scattered, over_data(1)), x.sum(0, keepdims=True), 1e-6)


def test_refusals(one_chip: Mesh) -> None:
    with pytest.raises(RuntimeError, match="fabric"):
        tt.all_reduce(tensor(one_chip, np.ones((2, 2))), cluster_axis=1)


def test_refuses_an_axis_of_one_chip(loudbox: Mesh) -> None:
    x = tensor(loudbox, np.ones((2, 2)))
    with pytest.raises(RuntimeError, match="num_devices > 1"):
        tt.all_reduce(x, cluster_axis=0)
    with pytest.raises(RuntimeError, match="divisible by ring_size"):
        tt.reduce_scatter(x, 1, cluster_axis=1)


@pytest.mark.parametrize("axis", [0, 1])
def test_collectives_along_one_axis_of_two(
    open_emulator: Callable[..., Mesh], numbers: np.random.Generator, axis: int
) -> None:
    mesh = open_emulator((2, 4))
    x = numbers.standard_normal((2, 4, 3, 8)).astype(np.float32)
    mapper = tt.create_mesh_mapper(
        mesh.handle, tt.MeshMapperConfig([tt.PlacementShard(0), tt.PlacementShard(1)])
    )
    sharded = tt.Tensor(x, tt.float32, device=mesh.handle, layout=tt.TILE_LAYOUT, mesh_mapper=mapper)
    total = tt.all_reduce(sharded, cluster_axis=axis)
    assert total.array.shape[axis] == 1
    assert_close(
        np.squeeze(total.array, axis), np.squeeze(x.sum(axis, keepdims=True), axis)[:, None, None], 1e-6
    )
    gathered = tt.all_gather(sharded, 3, cluster_axis=axis)
    assert gathered.shape == (1, 1, 3, 8 * x.shape[axis])
    scattered = tt.reduce_scatter(sharded, 3, cluster_axis=axis)
    assert scattered.shape == (1, 1, 3, 8 // x.shape[axis])
    restored = tt.all_gather(scattered, 3, cluster_axis=axis)
    assert np.array_equal(restored.array, total.array)


def test_collectives_over_both_axes(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator((2, 4))
    x = tensor(mesh, np.ones((1, 1, 8, 256)))
    assert_close(download(mesh, tt.all_reduce(x)), np.full((1, 1, 8, 256), 8.0), 0)
    assert tt.reduce_scatter(x, 3).shape == (1, 1, 8, 32)
    assert tt.mesh_partition(x, 3).shape == (1, 1, 8, 32)
    with pytest.raises(RuntimeError, match="1D fabric on a 2D mesh_device"):
        tt.all_gather(x, 3)


def test_slices_of_partial_tiles(loudbox: Mesh) -> None:
    wide, narrow = tensor(loudbox, np.ones((1, 1, 8, 128))), tensor(loudbox, np.ones((1, 1, 8, 100)))
    assert tt.reduce_scatter(wide, 3, cluster_axis=1).shape == (1, 1, 8, 16)
    with pytest.raises(RuntimeError, match="divisible by ring_size"):
        tt.reduce_scatter(narrow, 3, cluster_axis=1)
    with pytest.raises(RuntimeError, match="aligned to tiles"):
        tt.mesh_partition(wide, 3, 1)
    with pytest.raises(RuntimeError, match="rank 2"):
        tt.reduce_scatter(tensor(loudbox, np.ones(256)), 0, cluster_axis=1)
