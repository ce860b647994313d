"""Results of the emulator do not depend on its number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from mesh.device import open_mesh
from mesh.emulator import parallel
from mesh.fingerprint import compute_fingerprint


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    parallel.use_threads(request.param)
    yield request.param
    parallel.use_threads(1)


def helpers() -> int:
    return sum(thread.name.startswith("emulator-") for thread in threading.enumerate())


def test_every_call_is_made_once(threads: int):
    for count in (1, 2, 7, 100):
        made = np.zeros(count, int)

        def call(index: int, made: np.ndarray = made) -> None:
            made[index] += 1

        parallel.run(call, count)
        assert (made == 1).all()


def test_all_threads_run_calls():
    parallel.use_threads(3)
    try:
        barrier = threading.Barrier(3)
        parallel.run(lambda index: barrier.wait(timeout=30) and None, 3)
    finally:
        parallel.use_threads(1)


def test_an_error_on_any_thread_reaches_the_caller(threads: int):
    def call(index: int) -> None:
        if index == 5:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        parallel.run(call, 9)
    parallel.run(lambda index: None, 9)


def test_all_threads_ignore_overflow():
    settings = []
    parallel.use_threads(2)
    try:
        barrier = threading.Barrier(2)

        def call(index: int) -> None:
            barrier.wait(timeout=30)
            if threading.current_thread() is not threading.main_thread():
                settings.append(np.geterr()["over"])

        parallel.run(call, 2)
    finally:
        parallel.use_threads(1)
    assert settings == ["ignore"]


def test_the_threads_live_as_long_as_the_mesh():
    with open_mesh((1, 1), backend="emulator", threads=3):
        assert helpers() == 2
    assert helpers() == 0


def test_the_fingerprint_ignores_the_number_of_threads():
    facts = []
    for threads in (1, 3):
        with open_mesh((1, 1), backend="emulator", threads=threads) as mesh:
            facts.append(compute_fingerprint(mesh))
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("size", "count", "multiple"), [(1, 4, 1), (10, 4, 1), (768, 2, 32), (65, 4, 32), (33, 16, 32)]
)
def test_cuts_cover_everything_in_order(size: int, count: int, multiple: int):
    slices = parallel.cut(size, count, multiple)
    assert len(slices) <= count
    assert [index for part in slices for index in range(size)[part]] == list(range(size))
    assert all((part.stop - part.start) % multiple == 0 for part in slices[:-1])


def test_no_items_are_one_empty_slice():
    assert parallel.cut(0, 4) == [slice(0, 0)]


@pytest.mark.parametrize(
    "shape", [(768, 128, 512), (128, 768, 1024), (96, 1024, 4001), (1, 512, 32000), (3, 5, 7)]
)
def test_products_are_those_of_numpy(shape: tuple[int, int, int], numbers: np.random.Generator, threads: int):
    rows, inner, columns = shape
    left = numbers.standard_normal((inner, rows), dtype=np.float32).T
    right = numbers.standard_normal((inner, columns), dtype=np.float32)
    product = parallel.multiply(left, right)
    expected = left.astype(np.float64) @ right
    assert np.abs(product - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 8, 4, 256, 64), (1, 8, 4, 64, 256)),
        ((1, 1, 4, 256, 128), (8, 1, 1, 128, 256)),
        ((2, 3, 5), (1, 5, 2)),
    ],
)
def test_batched_products_are_those_of_numpy(
    left: tuple[int, ...], right: tuple[int, ...], numbers: np.random.Generator, threads: int
):
    one, other = (
        numbers.standard_normal(left, dtype=np.float32),
        numbers.standard_normal(right, dtype=np.float32),
    )
    assert (parallel.multiply_batches(one, other) == np.matmul(one, other)).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 1, 16, 256, 256), (1, 1, 1, 256, 256)),
        ((8, 1, 1024, 128), ()),
        ((1, 1, 3, 1), (1, 1, 1, 4)),
        ((0, 4), (1, 4)),
    ],
)
def test_elementwise_equals_numpy(
    one: tuple[int, ...], other: tuple[int, ...], numbers: np.random.Generator, threads: int
):
    left, right = (np.asarray(numbers.standard_normal(shape), np.float32) for shape in (one, other))
    added = parallel.apply_elementwise(np.add, left, right, dtype=np.float32)
    assert added.dtype == np.float32
    assert (added == left + right).all()
    equal = parallel.apply_elementwise(np.equal, left, right, dtype=np.uint32)
    assert equal.dtype == np.uint32
    assert (equal == (left == right)).all()
    if added.size == left.size:
        assert parallel.apply_elementwise(np.add, left, right, dtype=np.float32, out=left) is left
        assert (left == added).all()
