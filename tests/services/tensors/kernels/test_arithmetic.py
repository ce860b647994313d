"""Tests that sums and norms have the bits of their definition, however the array is cut."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.schedules import gradient_norm
from services.tensors.kernels import arithmetic
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array, Float64Array
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.block_sums import norm_squared_blocks


def random_values(count: int, seed: int = 0, exponent: int = 0) -> Float32Array:
    values = np.random.Generator(np.random.Philox(seed)).standard_normal(count, dtype=np.float32)
    return values * np.float32(2.0**exponent)


def folded_sum(squares: Float64Array) -> np.float64:
    """Return a block's sum by definition: recursive, without buffers."""
    if squares.size == 1:
        return squares[0]
    half = squares.size // 2
    return folded_sum(squares[:half] + squares[half:])


def test_accumulate_adds_in_place_and_rounds_once() -> None:
    into, other = random_values(1000, 1), random_values(1000, 2, exponent=-9)
    expected = (into.astype(np.float64) + other.astype(np.float64)).astype(np.float32)
    arithmetic.accumulate(into, other)
    assert into.tobytes() == expected.tobytes()


@pytest.mark.parametrize("target", ["fresh", "left", "right"])
def test_add_may_write_into_either_operand(target: str) -> None:
    left, right = random_values(1000, 1), random_values(1000, 2)
    expected = (left + right).tobytes()
    out = {"fresh": np.empty(1000, np.float32), "left": left, "right": right}[target]
    arithmetic.add(left, right, out)
    assert out.tobytes() == expected


def test_scale_multiplies_by_the_factor_rounded_to_float32() -> None:
    values = random_values(1000)
    expected = (values.astype(np.float64) * float(np.float32(1 / 3))).astype(np.float32)
    arithmetic.scale_with_norm(values, 1 / 3, out=values)
    assert values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [1, 5, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1])
def test_block_sums_are_the_folded_sums_of_float64_squares(count: int) -> None:
    values = random_values(count, exponent=10)
    padded = np.zeros(-(-count // BLOCK_ELEMENTS) * BLOCK_ELEMENTS)
    padded[:count] = values
    expected = [folded_sum(block**2) for block in padded.reshape(-1, BLOCK_ELEMENTS)]
    assert norm_squared_blocks(values).tolist() == expected


def test_block_sums_of_chunks_equal_those_of_the_whole_array() -> None:
    values = random_values(2 * CHUNK_ELEMENTS + 12345)
    whole = norm_squared_blocks(values)
    chunks = [values[start : start + CHUNK_ELEMENTS] for start in range(0, values.size, CHUNK_ELEMENTS)]
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(norm_squared_blocks, chunks))
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_block_sums_do_not_depend_on_alignment() -> None:
    values = random_values(3 * BLOCK_ELEMENTS)
    expected = norm_squared_blocks(values)
    shifted = np.empty(values.size + 3, np.float32)
    for shift in range(4):
        view = shifted[shift : shift + values.size]
        view[:] = values
        assert norm_squared_blocks(view).tobytes() == expected.tobytes()


def test_golden_bits_of_the_norm() -> None:
    # A job that resumes under a newer release keeps its bits. Change this value only if an issue asks for it.
    values = np.arange(-100_000, 100_000, dtype=np.float32) / np.float32(7)
    assert gradient_norm(norm_squared_blocks(values)).hex() == "0x1.c2435c8b135d0p+21"


@given(st.lists(st.floats(0, 1e30), max_size=30))
def test_norm_is_the_root_of_the_exact_sum(sums: list[float]) -> None:
    assert gradient_norm(sums) == math.sqrt(math.fsum(reversed(sums)))


def test_norm_of_large_arrays_has_no_float32_rounding_error() -> None:
    values = np.full(40 * BLOCK_ELEMENTS, 0.1, np.float32)
    expected = float(np.float32(0.1)) * math.sqrt(values.size)
    assert gradient_norm(norm_squared_blocks(values)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", [0, 7, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 99])
def test_non_finite_element_shows_in_its_block_sum_and_the_norm(bad: float, where: int) -> None:
    values = random_values(BLOCK_ELEMENTS + 100)
    values[where] = bad
    sums = norm_squared_blocks(values)
    assert np.isfinite(sums).tolist() == [block != where // BLOCK_ELEMENTS for block in range(2)]
    assert not math.isfinite(gradient_norm(sums))


def test_norm_of_the_largest_float32_values_is_finite() -> None:
    values = np.full(BLOCK_ELEMENTS, np.finfo(np.float32).max)
    assert math.isfinite(gradient_norm(norm_squared_blocks(values)))


def test_empty_array_has_no_block_sums() -> None:
    assert norm_squared_blocks(np.empty(0, np.float32)).size == 0
    assert gradient_norm([]) == 0.0


@pytest.mark.parametrize("where", [0, 7, 99])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_all_finite_finds_one_non_finite_element(bad: float, where: int) -> None:
    values = np.ones(100, np.float32)
    assert arithmetic.all_finite(values)
    values[where] = bad
    assert not arithmetic.all_finite(values)


def test_all_finite_accepts_the_largest_float32_values() -> None:
    assert arithmetic.all_finite(np.full(100, np.finfo(np.float32).max, np.float32))
    assert arithmetic.all_finite(np.empty(0, np.float32))
