"""Every clone of the kernels gives the bits of numpy, for any value, length, alignment and operand."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native.library import C, Kernels, find_kernels
from services.tensors.kernels import arithmetic
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.kernels.wire_types import WireDType
from tests.support import numpy_kernels

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


@pytest.fixture(params=find_kernels(C), ids=lambda kernels: kernels.clone, autouse=True, scope="module")
def _clone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute by each clone that this CPU can run."""
    kernels: Kernels = request.param
    with mock.patch.object(arithmetic, "KERNELS", kernels):
        yield


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


def unaligned(values: NDArray[np.generic], shift: int) -> NDArray[np.generic]:
    """Return a writable copy whose first byte lies `shift` bytes behind an aligned address."""
    place = np.empty(values.nbytes + 16, np.uint8)
    start = -place.ctypes.data % 8 + shift
    copy = place[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


COUNTS = st.integers(0, 300) | st.sampled_from([4095, 4097, 32 * 1024 + 1, BLOCK_ELEMENTS + 3])
SEEDS = st.integers(0, 1 << 32)
SHIFTS = st.integers(0, 7)


@EVERY
@settings(deadline=None, max_examples=40)
@given(count=COUNTS, seed=SEEDS, shift=SHIFTS)
def test_wire_conversions(dtype: WireDType, count: int, seed: int, shift: int) -> None:
    values, into = any_bits(seed, count), any_bits(seed + 1, count)
    expected = numpy_kernels.to_wire(values, dtype)
    assert_same(arithmetic.to_wire(unaligned(values, shift), dtype), expected)
    place = unaligned(np.zeros(expected.nbytes, np.uint8), shift)
    assert_same(arithmetic.to_wire(values, dtype, place), expected)
    assert place.tobytes() == expected.tobytes()
    payload = as_received(expected.tobytes(), shift)
    widened = numpy_kernels.from_wire(payload, dtype)
    assert_same(arithmetic.from_wire(payload, dtype), widened)
    sums = unaligned(into, shift)
    arithmetic.accumulate_wire(sums, payload, dtype)
    assert_same(sums, numpy_kernels.add(into, widened))


@NARROW
def test_every_16_bit_value_survives_the_round_trip(dtype: WireDType) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16)
    widened = arithmetic.from_wire(stored, dtype)
    assert widened.tobytes() == numpy_kernels.from_wire(stored, dtype).tobytes()
    nan, infinite = (0x7FC0, 0x7F80) if dtype == "bf16" else (0x7E00, 0x7C00)
    returned = arithmetic.to_wire(widened, dtype)
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
    assert_same(arithmetic.to_wire(values, dtype), numpy_kernels.to_wire(values, dtype))
    reference = np.dtype(ml_dtypes.bfloat16) if dtype == "bf16" else np.dtype(np.float16)
    numbers = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = numbers.astype(reference).view(np.uint16)
    np.testing.assert_array_equal(arithmetic.to_wire(numbers, dtype), expected)


@settings(deadline=None, max_examples=60)
@given(count=COUNTS, seed=SEEDS, shift=SHIFTS, target=st.sampled_from(["fresh", "left", "right"]))
def test_sums(count: int, seed: int, shift: int, target: str) -> None:
    left, right = (unaligned(any_bits(seed + each, count), shift) for each in range(2))
    expected = numpy_kernels.add(left, right)
    out = {"fresh": np.empty(count, np.float32), "left": left, "right": right}[target]
    arithmetic.add(left, right, out)
    assert_same(out, expected)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(0, 70) | st.integers(BLOCK_ELEMENTS - 2, 3 * BLOCK_ELEMENTS),
    seed=SEEDS,
    shift=SHIFTS,
    in_place=st.booleans(),
    factor=st.floats(allow_nan=False, width=32),
    finite=st.booleans(),
)
def test_scaling_and_block_sums(
    count: int, seed: int, shift: int, in_place: bool, factor: float, finite: bool
) -> None:
    values = any_bits(seed, count)
    if finite:
        values = np.where(np.isfinite(values), values, np.float32(1.5))
    expected = numpy_kernels.scale(values, factor)
    given_values = unaligned(values, shift)
    out = given_values if in_place else np.empty(count, np.float32)
    sums = arithmetic.scale_with_norm(given_values, factor, out)
    assert_same(out, expected)
    assert_same(sums, numpy_kernels.norm_squared_blocks(expected))


def test_subnormals_are_neither_read_nor_written_as_zero() -> None:
    tiny = np.full(1001, 1e-42, np.float32)
    out = np.empty_like(tiny)
    sums = arithmetic.scale_with_norm(tiny, 0.5, out)
    assert out[0] == out[-1] == tiny[0] / 2 != 0
    assert sums[0] > 0


def test_arrays_of_different_length_are_refused() -> None:
    short, long = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.accumulate(long, short)
    with pytest.raises(ValueError, match=r"4 elements.* 3"):
        arithmetic.add(short, long, short)
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.accumulate_wire(long, short.astype(np.uint16), "bf16")
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.to_wire(long, "fp16", np.zeros(6, np.uint8))
    with pytest.raises(ValueError, match=r"3 elements.* 4"):
        arithmetic.copy_from_wire(short.astype(np.uint16), "bf16", long)


def test_arrays_that_a_kernel_would_misread_are_refused() -> None:
    values = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match=r"float64 .*: expected contiguous float32"):
        arithmetic.accumulate(values, values.astype(np.float64))
    with pytest.raises(ValueError, match=r"\(8,\) bytes apart: expected contiguous"):
        arithmetic.accumulate(values[:4], values[::2])
    with pytest.raises(ValueError, match=r"read-only: expected contiguous float32 that can be written to"):
        arithmetic.accumulate(np.frombuffer(bytes(32), np.float32), values)
