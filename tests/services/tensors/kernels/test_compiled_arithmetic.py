"""Tests that compiled kernels give the bits of the numpy path, for any value, length, alignment and operand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.tensors.kernels import arithmetic, compiler
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.kernels.wire_types import WireDType

NARROW = pytest.mark.parametrize("dtype", ["bf16", "fp16"])
EVERY = pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-40,
        65504.0,
        65520.0,
        -65519.99,
        2.0**-24,
        2.0**-25,
        3.4e38,
    ],
    np.float32,
)

pytestmark = pytest.mark.skipif(
    compiler.load(arithmetic.COMPILED_MODULE) is None, reason="no compiled kernels here: numpy computes"
)


@contextmanager
def numpy_path() -> Iterator[None]:
    with mock.patch.dict(compiler._loaded, {arithmetic.COMPILED_MODULE: None}):
        yield


def check_both_paths(compute: Callable[[], Float32Array | NDArray[np.uint16]]) -> None:
    compiled = compute()
    with numpy_path():
        expected = compute()
    assert_same(compiled, expected)


def assert_same(left: NDArray[np.generic], right: NDArray[np.generic]) -> None:
    """Check that two arrays have the same bits, except that all NaNs of float32 are equal."""
    assert left.dtype == right.dtype
    if left.dtype.kind == "f":
        nans = np.isnan(left)
        np.testing.assert_array_equal(nans, np.isnan(right))
        left, right = np.where(nans, 0, left), np.where(nans, 0, right)
    assert left.tobytes() == right.tobytes()


def any_bits(seed: int, count: int) -> Float32Array:
    """Return [count] float32 of random bits: all exponents equally likely, with denormals, infinities and NaNs."""
    random = np.random.Generator(np.random.Philox(seed))
    values = random.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    where = random.integers(0, max(count, 1), min(count, 40))
    values[where] = SPECIAL[random.integers(0, SPECIAL.size, where.size)]
    return values


def as_received(payload: bytes, shift: int) -> memoryview:
    """Return a read-only view that begins `shift` bytes into a message, as received payloads do."""
    return memoryview(b"\x00" * shift + payload)[shift:]


COUNTS = st.integers(0, 300) | st.sampled_from([4095, 4097, 32 * 1024 + 1, BLOCK_ELEMENTS + 3])
SEEDS = st.integers(0, 1 << 32)
SHIFTS = st.integers(0, 7)


@EVERY
@settings(deadline=None, max_examples=60)
@given(count=COUNTS, seed=SEEDS, shift=SHIFTS)
def test_wire_conversions_agree(dtype: WireDType, count: int, seed: int, shift: int) -> None:
    values, into = any_bits(seed, count), any_bits(seed + 1, count)
    payload = as_received(arithmetic.to_wire(values, dtype).tobytes(), shift)

    def accumulated() -> Float32Array:
        sums = into.copy()
        arithmetic.accumulate_wire(sums, payload, dtype)
        return sums

    check_both_paths(lambda: arithmetic.to_wire(values, dtype))
    check_both_paths(lambda: arithmetic.from_wire(payload, dtype))
    check_both_paths(accumulated)


@NARROW
def test_every_16_bit_value_survives_the_round_trip(dtype: WireDType) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16)
    check_both_paths(lambda: arithmetic.from_wire(stored, dtype).view(np.uint32).view(np.int32))
    returned = arithmetic.to_wire(arithmetic.from_wire(stored, dtype), dtype)
    nan, infinite = (0x7FC0, 0x7F80) if dtype == "bf16" else (0x7E00, 0x7C00)
    np.testing.assert_array_equal(returned, np.where(stored & 0x7FFF > infinite, nan, stored))


@NARROW
def test_rounding_is_to_nearest_even_around_every_16_bit_value(dtype: WireDType) -> None:
    # The midpoints between adjacent values, and the neighbours of each midpoint.
    stored = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore", over="ignore"):
        widened = arithmetic.from_wire(stored, dtype).astype(np.float64)
        halves = ((widened[1:] + widened[:-1]) / 2).astype(np.float32)
    values = np.concatenate(
        [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    )
    check_both_paths(lambda: arithmetic.to_wire(values, dtype))
    reference = np.dtype(ml_dtypes.bfloat16) if dtype == "bf16" else np.dtype(np.float16)
    numbers = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = numbers.astype(reference).view(np.uint16)
    np.testing.assert_array_equal(arithmetic.to_wire(numbers, dtype), expected)


@settings(deadline=None, max_examples=60)
@given(count=COUNTS, seed=SEEDS, target=st.sampled_from(["fresh", "left", "right"]))
def test_sums_agree(count: int, seed: int, target: str) -> None:
    def added() -> Float32Array:
        left, right = any_bits(seed, count), any_bits(seed + 1, count)
        out = {"fresh": np.empty(count, np.float32), "left": left, "right": right}[target]
        arithmetic.add(left, right, out)
        return out

    check_both_paths(added)


@settings(deadline=None, max_examples=60)
@given(count=COUNTS, seed=SEEDS, in_place=st.booleans(), factor=st.floats(allow_nan=False, width=32))
def test_scaling_agrees(count: int, seed: int, in_place: bool, factor: float) -> None:
    def scaled() -> Float32Array:
        values = any_bits(seed, count)
        out = values if in_place else np.empty(count, np.float32)
        with np.errstate(all="ignore"):
            arithmetic.scale(values, factor, out)
        return out

    check_both_paths(scaled)


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(0, 70) | st.integers(BLOCK_ELEMENTS - 2, 3 * BLOCK_ELEMENTS),
    seed=SEEDS,
    finite=st.booleans(),
)
def test_block_sums_agree(count: int, seed: int, finite: bool) -> None:
    values = any_bits(seed, count)
    if finite:
        values = np.where(np.isfinite(values), values, np.float32(1.5))
    check_both_paths(lambda: arithmetic.norm_squared_blocks(values))


def test_arrays_of_different_length_are_refused() -> None:
    short, long = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.accumulate(long, short)
    with pytest.raises(ValueError, match=r"4 elements.* 3"):
        arithmetic.add(short, long, short)
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.accumulate_wire(long, short.astype(np.uint16), "bf16")
