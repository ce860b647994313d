from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, empty, tensor

Array = np.ndarray[Any, Any]


def compute_reference(
    x: Array, gamma: Array, beta: Array, dy: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    normal = (x - mean) * rstd
    dn = dy * gamma
    dx = rstd * (dn - dn.mean(-1, keepdims=True) - normal * (dn * normal).mean(-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    return normal * gamma + beta, mean[..., 0], rstd[..., 0], dx, (dy * normal).sum(rows), dy.sum(rows)


@pytest.mark.parametrize(("rows", "width"), [((1, 1, 64), 128), ((2, 1, 50), 40), ((1, 1, 3000), 64)])
def test_forward_and_backward(
    one_chip: Mesh, numbers: np.random.Generator, rows: tuple[int, ...], width: int
) -> None:
    x = numbers.standard_normal((*rows, width)) * 3 + 5
    dy, gamma, beta = (numbers.standard_normal(shape) for shape in ((*rows, width), (1, width), (1, width)))
    y, mean, rstd, dx, dgamma, dbeta = compute_reference(x, gamma, beta, dy)
    operand, scale = tensor(one_chip, x), tensor(one_chip, gamma)
    out = tt.moreh_layer_norm(
        operand,
        1,
        1e-5,
        scale,
        tensor(one_chip, beta),
        mean=empty(one_chip, *rows),
        rstd=empty(one_chip, *rows),
    )
    for actual, expected in zip(out, (y, mean, rstd), strict=True):
        assert_close(download(one_chip, actual), expected, 2e-6)
    gradients = tt.moreh_layer_norm_backward(
        tensor(one_chip, dy),
        operand,
        out[1],
        out[2],
        1,
        gamma=scale,
        input_grad=empty(one_chip, *rows, width),
        gamma_grad=empty(one_chip, 1, width),
        beta_grad=empty(one_chip, width),
    )
    for actual, expected in zip(gradients, (dx, dgamma[None], dbeta), strict=True):
        assert_close(download(one_chip, actual), expected, 1e-5)


def test_rows_over_chips(open_emulator: Callable[..., Mesh], numbers: np.random.Generator) -> None:
    x, dy = numbers.standard_normal((1, 1, 64, 32)), numbers.standard_normal((1, 1, 64, 32))
    gamma = numbers.standard_normal((1, 32))
    y, _, _, dx, dgamma, _ = compute_reference(x, gamma, np.zeros((1, 32)), dy)
    mesh = open_emulator((1, 8))
    operand, scale = tensor(mesh, x, shard=2), tensor(mesh, gamma)
    out = tt.moreh_layer_norm(operand, 1, 1e-5, scale, mean=empty(mesh, 1, 1, 8), rstd=empty(mesh, 1, 1, 8))
    assert_close(download(mesh, out[0], over_data(2)), y, 2e-6)
    gradients = tt.moreh_layer_norm_backward(
        tensor(mesh, dy, shard=2), operand, out[1], out[2], 1, gamma=scale,
        input_grad=empty(mesh, 1, 1, 8, 32), gamma_grad=empty(mesh, 1, 32),
    )  # fmt: skip
    assert_close(download(mesh, gradients[0], over_data(2)), dx, 1e-5)
    assert_close(download(mesh, tt.all_reduce(gradients[1], cluster_axis=1)), dgamma[None], 1e-5)
    assert gradients[2] is None


def test_only_allocated_outputs_are_returned(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((1, 1, 32, 32)))
    assert [out is None for out in tt.moreh_layer_norm(x, 1, 1e-5)] == [False, True, True]


def test_operands_that_ttnn_silently_accepts_are_refused(one_chip: Mesh) -> None:
    x, row = tensor(one_chip, np.ones((1, 1, 32, 32))), tensor(one_chip, np.ones((1, 1, 32)))
    with pytest.raises(RuntimeError, match="gamma must have logical shape"):
        tt.moreh_layer_norm(x, 1, 1e-5, tensor(one_chip, np.ones((1, 64))))
    with pytest.raises(RuntimeError, match="no output is pre-allocated"):
        tt.moreh_layer_norm_backward(x, x, row, row, 1)
    with pytest.raises(RuntimeError, match="rstd of shape"):
        tt.moreh_layer_norm_backward(x, x, row, x, 1, input_grad=empty(one_chip, 1, 1, 32, 32))
    shared = empty(one_chip, 1, 1, 32, 32)
    view = tt.reshape(shared, [32, 32])
    with pytest.raises(RuntimeError, match="shares its buffer"):
        tt.moreh_layer_norm_backward(x, x, row, row, 1, input_grad=shared)
    del view
    tt.moreh_layer_norm_backward(x, x, row, row, 1, input_grad=shared)
