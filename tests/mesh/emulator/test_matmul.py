from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor

SHAPES = [
    ((2, 1, 16, 24), (1, 1, 24, 40)),
    ((2, 1, 16, 24), (24, 40)),
    ((2, 16, 24), (24, 40)),
    ((16, 24), (1, 1, 24, 40)),
    ((2, 4, 16, 24), (2, 4, 24, 40)),
    ((2, 4, 16, 24), (1, 1, 24, 40)),
    ((1, 1, 16, 24), (2, 4, 24, 40)),
    ((1, 1, 7, 5), (1, 1, 5, 3)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products(
    one_chip: Mesh,
    numbers: np.random.Generator,
    left: tuple[int, ...],
    right: tuple[int, ...],
    transpose_a: bool,
    transpose_b: bool,
) -> None:
    a, b = numbers.standard_normal(left), numbers.standard_normal(right)
    given_a = a.swapaxes(-1, -2) if transpose_a else a
    given_b = b.swapaxes(-1, -2) if transpose_b else b
    y = tt.matmul(
        tensor(one_chip, given_a), tensor(one_chip, given_b), transpose_a=transpose_a, transpose_b=transpose_b
    )
    assert_close(download(one_chip, y), a @ b, 1e-6)


def test_products_of_heads_that_are_views(one_chip: Mesh, numbers: np.random.Generator) -> None:
    rows = numbers.standard_normal((2, 1, 64, 3 * 2 * 32))
    q, k, v = tt.experimental.nlp_create_qkv_heads(
        tensor(one_chip, rows), num_heads=2, num_kv_heads=2, transpose_k_heads=False
    )
    split = rows.reshape(2, 64, 3, 2, 32).transpose(2, 0, 3, 1, 4)
    scores = tt.matmul(q, k, transpose_b=True)
    assert_close(download(one_chip, scores), split[0] @ split[1].swapaxes(-1, -2), 1e-6)
    assert_close(download(one_chip, tt.matmul(scores, v, transpose_a=True)),
          (split[0] @ split[1].swapaxes(-1, -2)).swapaxes(-1, -2) @ split[2], 1e-6)  # fmt: skip


@pytest.mark.parametrize("bias_shape", [(40,), (1, 40), (1, 1, 1, 40)])
def test_linear(one_chip: Mesh, numbers: np.random.Generator, bias_shape: tuple[int, ...]) -> None:
    x, w, b = (
        numbers.standard_normal((2, 1, 16, 24)),
        numbers.standard_normal((24, 40)),
        numbers.standard_normal(40),
    )
    y = tt.linear(tensor(one_chip, x), tensor(one_chip, w), bias=tensor(one_chip, b.reshape(bias_shape)))
    assert_close(download(one_chip, y), x @ w + b, 1e-6)


@pytest.mark.parametrize("shape", [(1, 8), (8, 1)])
def test_sharded_rows_times_a_replicated_weight(
    open_emulator: Callable[..., Mesh], numbers: np.random.Generator, shape: tuple[int, int]
) -> None:
    mesh = open_emulator(shape)
    x, w = numbers.standard_normal((1, 1, 64, 24)), numbers.standard_normal((1, 1, 24, 40))
    rows = tensor(mesh, x, shard=2)
    y = tt.matmul(rows, tensor(mesh, w))
    assert y.shape == (1, 1, 8, 40)
    assert_close(download(mesh, y, over_data(2)), x @ w, 1e-6)
    gradient = tt.all_reduce(tt.matmul(rows, y, transpose_a=True), cluster_axis=mesh.axes.data)
    assert_close(download(mesh, gradient), x.swapaxes(-1, -2) @ (x @ w), 1e-6)


def test_a_replicated_product_is_stored_once(loudbox: Mesh) -> None:
    w = tensor(loudbox, np.ones((1, 1, 24, 40)))
    assert tt.matmul(w, w, transpose_b=True).array.shape == (1, 1, 1, 1, 24, 24)


def test_refusals(one_chip: Mesh) -> None:
    a, b = tensor(one_chip, np.ones((16, 24))), tensor(one_chip, np.ones((16, 24)))
    with pytest.raises(RuntimeError, match="height of the second"):
        tt.matmul(a, b)
    with pytest.raises(RuntimeError, match="ROW_MAJOR"):
        tt.matmul(a, tensor(one_chip, np.ones((24, 8)), layout=tt.ROW_MAJOR_LAYOUT))
    with pytest.raises(RuntimeError, match="batch dimensions"):
        tt.matmul(tensor(one_chip, np.ones((2, 4, 8, 8))), tensor(one_chip, np.ones((2, 1, 8, 8))))
    with pytest.raises(RuntimeError, match="bias"):
        tt.linear(a, b, bias=tensor(one_chip, np.ones((1, 3))), transpose_b=True)
    with pytest.raises(TypeError):
        tt.matmul(a, 2.0)
