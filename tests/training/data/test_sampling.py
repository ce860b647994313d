"""Samplers: independent draws, epochs in which each window comes once, and files with weights."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.sampling import ROUND, Draws, Sampler, divide_round, make_sampler
from training.seeds import make_generator


def pairs(draws: Draws) -> list[tuple[int, int]]:
    return list(zip(draws.files.tolist(), draws.windows.tolist(), strict=True))


def row(sampler: Sampler, steps: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the windows of the first steps, in the order of the job."""
    return [
        pair
        for step, index in product(range(steps), range(micro_batches))
        for pair in pairs(sampler.draw(step, index))
    ]


def test_a_single_file_is_drawn_from_as_in_the_first_version() -> None:
    sampler = make_sampler([977], seed=7, batch_size=5)
    for step, index in product(range(3), range(3)):
        raw = make_generator(7, "micro-batch", step, index).random_raw(5)
        assert sampler.draw(step, index).windows.tolist() == [int(number) % 977 for number in raw]
        assert sampler.draw(step, index).files.tolist() == [0] * 5


@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    batch_size=st.integers(1, 7),
    micro_batches=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_epoch_has_each_window_once(
    windows: list[int], batch_size: int, micro_batches: int, seed: int
) -> None:
    sampler = make_sampler(
        windows, seed=seed, batch_size=batch_size, micro_batches=micro_batches, replacement=False
    )
    total = sum(windows)
    drawn = row(sampler, 1 + 2 * total // (batch_size * micro_batches), micro_batches)
    every = [(file, window) for file, count in enumerate(windows) for window in range(count)]
    first, second = drawn[:total], drawn[total : 2 * total]
    assert sorted(first) == sorted(second) == every


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    sampler = make_sampler([100], seed=1, batch_size=100, replacement=False)
    orders = [sampler.draw(step, 0).windows.tolist() for step in range(3)]
    orders.append(make_sampler([100], seed=2, batch_size=100, replacement=False).draw(0, 0).windows.tolist())
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_a_micro_batch_is_the_same_whatever_was_drawn_before() -> None:
    def make() -> Sampler:
        return make_sampler([30, 50], [1.0, 3.0], seed=4, batch_size=6, micro_batches=2, replacement=False)

    used = make()
    row(used, 5, 2)
    assert pairs(used.draw(3, 1)) == pairs(make().draw(3, 1))


def test_the_last_steps_of_the_longest_job_are_drawn() -> None:
    """Places in the row need more than 64 bits there."""
    for weights in (None, [1.0, 2.0]):
        sampler = make_sampler(
            [10**11, 7], weights, seed=1, batch_size=64, micro_batches=2**26, replacement=False
        )
        draws = sampler.draw(2**31 - 2, 2**26 - 1)
        assert draws.windows.min() >= 0 and all(draws.windows[draws.files == 1] < 7)


@pytest.mark.parametrize("replacement", [True, False])
def test_without_weights_each_window_of_all_files_is_as_likely(replacement: bool) -> None:
    sampler = make_sampler([300, 100], seed=3, batch_size=400, replacement=replacement)
    counts = Counter(file for file, _ in row(sampler, 50, 1))
    assert abs(counts[0] / 20_000 - 0.75) < (0.02 if replacement else 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_shares_of_the_draws(replacement: bool) -> None:
    sampler = make_sampler([1000, 5, 70], [1.0, 6.0, 3.0], seed=3, batch_size=500, replacement=replacement)
    counts = Counter(file for file, _ in row(sampler, 40, 1))
    for file, share in enumerate((0.1, 0.6, 0.3)):
        assert abs(counts[file] / 20_000 - share) < 0.02


@pytest.mark.long
def test_with_weights_each_file_has_epochs_of_its_own() -> None:
    windows = [1000, 500, 70]
    sampler = make_sampler(
        windows, [1.0, 6.0, 3.0], seed=3, batch_size=500, micro_batches=2, replacement=False
    )
    drawn = row(sampler, 140, 2)  # more than two rounds
    for file, count in enumerate(windows):
        of_file = [window for each, window in drawn if each == file]
        epochs = [of_file[start : start + count] for start in range(0, len(of_file) - count, count)]
        assert len(epochs) > 10
        assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
        assert epochs[0] != epochs[1]


def test_with_weights_every_micro_batch_has_the_shares() -> None:
    sampler = make_sampler([1000, 500, 70], [1.0, 6.0, 3.0], seed=3, batch_size=100, replacement=False)
    for step in range(700):  # more than one round
        counts = np.bincount(sampler.draw(step, 0).files, minlength=3)
        assert np.abs(counts - [10, 60, 30]).max() <= 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=512))
def test_a_round_is_divided_by_the_weights(weights: list[float]) -> None:
    shares = divide_round(weights)
    assert sum(shares) == ROUND and min(shares) >= 1
    total = sum(map(Fraction, weights))
    for weight, share in islice(zip(weights, shares, strict=True), 20):
        assert abs(share - Fraction(weight) * ROUND / total) <= len(weights) + 1


def test_the_draws_are_the_same_on_every_machine() -> None:
    sampler = make_sampler([100, 50], [1.0, 2.0], seed=5489, batch_size=4, micro_batches=3, replacement=False)
    assert pairs(sampler.draw(2, 1)) == [(0, 57), (1, 2), (1, 7), (0, 71)]
    sampler = make_sampler([100, 50], [1.0, 2.0], seed=5489, batch_size=4)
    assert pairs(sampler.draw(2, 1)) == [(1, 39), (1, 25), (1, 26), (0, 28)]
