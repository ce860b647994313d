from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.emulator.rounding import is_bfloat16, round_to_bfloat16
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


def test_rounding_equals_ml_dtypes_bit_for_bit(numbers: np.random.Generator) -> None:
    bits = numbers.integers(0, 2**32, 300_000, dtype=np.uint32)
    edges = [0, 0x80000000, 1, 0x8000, 0x18000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF]
    infinite = [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF]
    special = np.array([*edges, *infinite], dtype=np.uint32)
    values = np.concatenate([bits, special]).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = round_to_bfloat16(values.copy())
    assert np.array_equal(np.isnan(rounded), np.isnan(values))
    finite = ~np.isnan(values)
    assert np.array_equal(rounded.view(np.uint32)[finite], expected.view(np.uint32)[finite])
    assert is_bfloat16(rounded)
    assert not is_bfloat16(np.float32([0.1]))


def test_an_op_rounds_once(open_emulator: Callable[..., Mesh], numbers: np.random.Generator) -> None:
    mesh = open_emulator(dtype="bfloat16")
    x, w, b = (tensor(mesh, numbers.standard_normal(shape)) for shape in ((64, 96), (96, 32), (1, 32)))
    exact = download(mesh, x) @ download(mesh, w) + download(mesh, b)
    y = download(mesh, tt.linear(x, w, bias=b))
    assert is_bfloat16(y)
    # Rounding the product and the bias separately would exceed half a unit in the last place.
    assert np.array_equal(y, round_to_bfloat16(exact.copy()))


def test_bfloat16_is_summed_in_float32(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator(dtype="bfloat16")
    ones = tensor(mesh, np.ones((1, 1, 1000, 32)))
    assert (
        download(mesh, tt.sum(ones, dim=2, keepdim=True)) == 1000
    ).all()  # A bfloat16 sum would stop at 256.
    assert download(mesh, tt.mean(ones)) == 1


def test_a_cast_to_float32_keeps_the_values(
    open_emulator: Callable[..., Mesh], numbers: np.random.Generator
) -> None:
    mesh = open_emulator(dtype="bfloat16")
    x = tensor(mesh, numbers.standard_normal((32, 64)))
    up = tt.typecast(x, tt.float32)
    assert up.dtype is tt.float32
    assert_close(download(mesh, up), download(mesh, x), 0)
    values = np.float32([[0.1, 1.5]])
    assert is_bfloat16(download(mesh, tt.typecast(tensor(mesh, values, tt.float32), tt.bfloat16)))
