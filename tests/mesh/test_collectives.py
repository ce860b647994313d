from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from emulated import close, tensor

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.emulator.rounding import round_to_bfloat16
from mesh.placement import over_data
from mesh.transfer import download


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
    for piece in pieces[1:]:  # in the order of the chips, to the last bit
        expected = expected + piece
    assert np.array_equal(download(mesh, total), expected)
    assert total.array.shape[:2] == (1, 1)
    replicated = tt.all_reduce(tensor(mesh, x), cluster_axis=mesh.axes.data)
    close(download(mesh, replicated), x * chips, 1e-6)


def test_all_reduce_rounds_once(open_emulator: Callable[..., Mesh], numbers: np.random.Generator) -> None:
    mesh = open_emulator((1, 8), "bfloat16")
    x = round_to_bfloat16(numbers.standard_normal((8, 32)).astype(np.float32))
    total = download(mesh, tt.all_reduce(tensor(mesh, x, shard=0), cluster_axis=1))
    close(total, round_to_bfloat16(x.sum(0, keepdims=True)), 0.01)


def test_gather_and_scatter(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((8, 16)).astype(np.float32)
    gathered = tt.all_gather(tensor(loudbox, x, shard=0), 0, cluster_axis=1)
    assert np.array_equal(download(loudbox, gathered), x)
    scattered = tt.reduce_scatter(tensor(loudbox, x, shard=0), 1, cluster_axis=1)
    assert scattered.shape == (1, 2)
    close(download(loudbox, scattered, over_data(1)), x.sum(0, keepdims=True), 1e-6)


def test_refusals(one_chip: Mesh) -> None:
    with pytest.raises(RuntimeError, match="fabric"):
        tt.all_reduce(tensor(one_chip, np.ones((2, 2))), cluster_axis=1)


def test_refuses_an_axis_of_one_chip(loudbox: Mesh) -> None:
    x = tensor(loudbox, np.ones((2, 2)))
    with pytest.raises(RuntimeError, match="num_devices > 1"):
        tt.all_reduce(x, cluster_axis=0)
    with pytest.raises(RuntimeError, match="divisible by ring_size"):
        tt.reduce_scatter(x, 1, cluster_axis=1)
