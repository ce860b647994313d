from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


def test_softmax_and_its_gradient(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x, dy = numbers.standard_normal((2, 3, 70, 33)) * 5, numbers.standard_normal((2, 3, 70, 33))
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    out = tt.softmax(tensor(one_chip, x), dim=-1, numeric_stable=True)
    assert_close(download(one_chip, out), y, 1e-6)
    assert_close(download(one_chip, tt.softmax(tensor(one_chip, x), dim=3, numeric_stable=False)), y, 1e-5)
    gradient = tt.moreh_softmax_backward(out, tensor(one_chip, dy), 3)
    assert_close(download(one_chip, gradient), y * (dy - (y * dy).sum(-1, keepdims=True)), 1e-5)


def test_softmax_of_masked_and_large_scores(one_chip: Mesh) -> None:
    scores = np.full((1, 1, 32, 32), 3e4)
    masked = scores + np.triu(np.full((32, 32), -1e9), 1)
    y = download(one_chip, tt.softmax(tensor(one_chip, masked), dim=-1))
    assert_close(y[0, 0], np.tril(np.ones((32, 32))) / np.arange(1, 33)[:, None], 1e-6)


def test_logsoftmax_and_its_gradient(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x, dy = numbers.standard_normal((64, 68)) * 5, numbers.standard_normal((64, 68))
    y = x - np.log(np.exp(x).sum(-1, keepdims=True))
    out = tt.moreh_logsoftmax(tensor(loudbox, x, shard=0), 1)
    assert_close(download(loudbox, out, over_data(0)), y, 1e-6)
    gradient = tt.moreh_logsoftmax_backward(out, tensor(loudbox, dy, shard=0), 1)
    assert_close(download(loudbox, gradient, over_data(0)), dy - np.exp(y) * dy.sum(-1, keepdims=True), 1e-5)


def test_refusals(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((32, 64)))
    with pytest.raises(TypeError, match="negative"):
        tt.moreh_softmax_backward(x, x, -1)
    with pytest.raises(RuntimeError, match="output_grad_tensor of shape"):
        tt.moreh_softmax_backward(x, tensor(one_chip, np.ones((32, 32))), 1)
    with pytest.raises(RuntimeError, match="dimension 2"):
        tt.softmax(x, dim=2)


def test_softmax_over_another_dimension(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x, dy = (numbers.standard_normal((2, 5, 7)).astype(np.float32) for _ in range(2))
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert_close(download(one_chip, tt.softmax(tensor(one_chip, x), dim=1)), y, 1e-6)
    gradient = tt.moreh_softmax_backward(tensor(one_chip, y), tensor(one_chip, dy), 1)
    assert_close(download(one_chip, gradient), y * (dy - (y * dy).sum(1, keepdims=True)), 1e-6)
