from __future__ import annotations

import math

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor

POINTS = np.concatenate([np.linspace(-12, 12, 48_001), [-1e30, -1e4, -0.0, 0.0, 1e-30, 1e4, 1e30]]).astype(
    np.float32
)
_NORMAL = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in POINTS.astype(np.float64)])


def _tanh_distribution(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("variant", [tt.GeluVariant.Accurate, tt.GeluVariant.Tanh])
def test_gelu_is_accurate_to_float32(one_chip: Mesh, variant: tt.GeluVariant) -> None:
    x = POINTS.astype(np.float64)
    expected = x * (_NORMAL if variant is tt.GeluVariant.Accurate else _tanh_distribution(x))
    y = download(one_chip, tt.gelu(tensor(one_chip, POINTS), variant=variant))
    assert np.abs(y - expected).max() / 1e30 < 1e-6
    within = np.abs(POINTS) <= 12
    assert (np.abs(y - expected)[within] <= 2e-7 * (1 + np.abs(x[within]))).all()


@pytest.mark.parametrize("variant", [tt.GeluVariant.Accurate, tt.GeluVariant.Tanh])
def test_gelu_bw_is_the_derivative(one_chip: Mesh, variant: tt.GeluVariant) -> None:
    points = np.linspace(-9, 9, 20_001).astype(np.float32)
    x, step = points.astype(np.float64), 1e-6

    def gelu(at: np.ndarray) -> np.ndarray:
        if variant is tt.GeluVariant.Tanh:
            return at * _tanh_distribution(at)
        return at * np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in at])

    slope = (gelu(x + step) - gelu(x - step)) / (2 * step)
    dy = np.cos(points)
    operand = tensor(one_chip, points)
    without_forward = download(one_chip, tt.gelu_bw(tensor(one_chip, dy), operand, variant=variant)[0])
    assert np.abs(without_forward - dy * slope).max() < 2e-6
    tt.gelu(operand, variant=variant)
    after_forward = download(one_chip, tt.gelu_bw(tensor(one_chip, dy), operand, variant=variant)[0])
    assert np.array_equal(after_forward, without_forward)


def test_gelu_bw_ignores_values_kept_for_another_variant(one_chip: Mesh) -> None:
    points = np.linspace(-3, 3, 64).astype(np.float32)
    operand, dy = tensor(one_chip, points), tensor(one_chip, np.ones(64))
    plain = download(one_chip, tt.gelu_bw(dy, operand, variant=tt.GeluVariant.Tanh)[0])
    tt.gelu(operand, variant=tt.GeluVariant.Accurate)
    assert_close(download(one_chip, tt.gelu_bw(dy, operand, variant=tt.GeluVariant.Tanh)[0]), plain, 0)


def test_gelu_refuses_integers(one_chip: Mesh) -> None:
    with pytest.raises(RuntimeError, match="UINT32"):
        tt.gelu(tensor(one_chip, np.arange(32)))
