from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


@pytest.mark.parametrize("shape", [(2, 3, 32, 64), (1, 1, 1, 64), (64,), (2, 1, 32, 1), (3, 32, 64)])
def test_arithmetic_broadcasts(one_chip: Mesh, numbers: np.random.Generator, shape: tuple[int, ...]) -> None:
    x, y = numbers.standard_normal((2, 3, 32, 64)), numbers.standard_normal(shape)
    a, b = tensor(one_chip, x), tensor(one_chip, y)
    assert_close(download(one_chip, tt.add(a, b)), x + y, 1e-6)
    assert_close(download(one_chip, tt.subtract(a, b)), x - y, 1e-6)
    assert_close(download(one_chip, tt.multiply(b, a)), x * y, 1e-6)


def test_replicated_and_sharded_operands_of_any_rank(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x, row = numbers.standard_normal((16, 1, 8, 32)), numbers.standard_normal(32)
    for y in (tt.add(tensor(loudbox, x, shard=0), tensor(loudbox, row)),
              tt.add(tensor(loudbox, row), tensor(loudbox, x, shard=0))):  # fmt: skip
        assert y.shape == (2, 1, 8, 32)
        assert_close(download(loudbox, y, over_data(0)), x + row, 1e-6)


def test_numbers_and_functions_of_one_operand(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((32, 64))
    a = tensor(one_chip, x)
    for actual, expected in (
        (tt.multiply(a, 0.1), x * 0.1),
        (tt.add(a, 2), x + 2),
        (tt.neg(a), -x),
        (tt.exp(a), np.exp(x)),
        (tt.square(a), x * x),
    ):
        assert actual.array.dtype == np.float32
        assert_close(download(one_chip, actual), expected, 1e-6)


@pytest.mark.filterwarnings("error")
def test_overflow_is_silent_as_on_a_chip(one_chip: Mesh) -> None:
    large = tensor(one_chip, np.full((1, 32), 1e30))
    infinite = tt.exp(large)
    assert np.isinf(download(one_chip, infinite)).all()
    assert np.isnan(download(one_chip, tt.subtract(infinite, infinite))).all()
    assert np.isnan(download(one_chip, tt.softmax(infinite))).all()


def test_one_hot_and_gather(one_chip: Mesh, numbers: np.random.Generator) -> None:
    targets, classes = np.array([[3], [0], [5]]), np.arange(6)[None]
    equal = tt.eq(tensor(one_chip, targets), tensor(one_chip, classes))
    assert equal.dtype is tt.uint32
    assert np.array_equal(download(one_chip, tt.typecast(equal, tt.float32)), np.eye(6)[targets[:, 0]])
    x = numbers.standard_normal((3, 6))
    picked = tt.gather(tensor(one_chip, x), 1, tensor(one_chip, targets))
    assert_close(download(one_chip, picked), np.take_along_axis(x, targets, 1), 1e-7)
    with pytest.raises(RuntimeError, match="index 6 beyond"):
        tt.gather(tensor(one_chip, x), 1, tensor(one_chip, targets + 1))


@pytest.mark.parametrize(
    ("dim", "axes"), [(None, (0, 1, 2, 3)), (0, (0,)), (-1, (3,)), ([0, 1, 2], (0, 1, 2)), ([1, 3], (1, 3))]
)
def test_sums_and_means(
    one_chip: Mesh, numbers: np.random.Generator, dim: int | list[int] | None, axes: tuple[int, ...]
) -> None:
    x = numbers.standard_normal((2, 3, 32, 48))
    a = tensor(one_chip, x)
    # Terms cancel, so the sum of the magnitudes bounds the error of a float32 sum; the sum itself does not.
    errors = np.abs(download(one_chip, tt.sum(a, dim=dim)) - x.sum(axes))
    assert (errors <= 1e-6 * np.abs(x).sum(axes)).all()
    errors = np.abs(download(one_chip, tt.mean(a, dim=dim, keepdim=True)) - x.mean(axes, keepdims=True))
    assert (errors <= 1e-6 * np.abs(x).mean(axes, keepdims=True)).all()


def test_sums_are_computed_on_each_chip(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((1, 1, 64, 32))
    local = tt.sum(tensor(loudbox, x, shard=2), dim=2, keepdim=True)
    assert_close(download(loudbox, local, over_data(2)), x.reshape(1, 1, 8, 8, 32).sum(3), 1e-6)


def test_refusals(one_chip: Mesh) -> None:
    a = tensor(one_chip, np.ones((32, 64)))
    with pytest.raises(RuntimeError, match="broadcast"):
        tt.add(a, tensor(one_chip, np.ones((32, 32))))
    with pytest.raises(RuntimeError, match="Mixed dtype"):
        tt.eq(tensor(one_chip, np.ones((32, 1), np.int32)), tensor(one_chip, np.ones((1, 64), np.uint32)))
    with pytest.raises(TypeError):
        tt.add(a, np.float32(1))
    with pytest.raises(RuntimeError, match="dimension 2"):
        tt.sum(a, dim=2)
