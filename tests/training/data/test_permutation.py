"""A permutation gives each element once, in an order that follows from its names alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.permutation import MOST_ELEMENTS, Permutation
from training.seeds import make_generator


def order(size: int, *names: int | str) -> list[int]:
    return Permutation(size, *names)(np.arange(size, dtype=np.uint64)).tolist()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_each_element_comes_once(size: int, seed: int) -> None:
    assert sorted(order(size, seed)) == list(range(size))


@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1, 99_991])
def test_each_element_comes_once_around_powers_of_four(size: int) -> None:
    assert sorted(order(size, 1)) == list(range(size))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, MOST_ELEMENTS), st.data())
def test_elements_of_large_permutations_are_in_range_and_differ(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=50))
    elements = Permutation(size, 5)(np.array(places, np.uint64)).tolist()
    assert len(set(elements)) == len(places)
    assert all(0 <= element < size for element in elements)


def test_places_may_be_taken_in_any_order() -> None:
    whole = order(1000, 3, "epoch", 2)
    places = np.array([999, 0, 517, 517], np.uint64)
    assert Permutation(1000, 3, "epoch", 2)(places).tolist() == [whole[999], whole[0], whole[517], whole[517]]


def test_orders_differ_by_every_name() -> None:
    orders = [
        order(50, *names) for names in ((1, "epoch", 0), (1, "epoch", 1), (2, "epoch", 0), (1, "round", 0))
    ]
    assert len({tuple(each) for each in orders}) == 4


def expected_element(size: int, place: int, *names: int | str) -> int:
    """Compute an element with Python's unbounded integers."""
    half = max(1, -(-(size - 1).bit_length() // 2))
    keys = [int(key) for key in make_generator("permutation", size, *names).random_raw(8)]
    value = place
    while True:
        left, right = value >> half, value % (1 << half)
        for key in keys:
            mixed = right ^ key
            mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % (1 << 64)
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) % (1 << half))
        value = left << half | right
        if value < size:
            return value


def test_the_order_is_the_same_on_every_machine() -> None:
    assert order(20, 5489, "epoch", 0)[:10] == [11, 2, 18, 13, 14, 17, 6, 0, 12, 4]
    large = Permutation(10**11, 5489, "epoch", 3)(np.arange(4, dtype=np.uint64)).tolist()
    assert large == [97308095114, 40043432683, 94416896794, 61021531876]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, MOST_ELEMENTS), st.integers(0, 2**63 - 1), st.data())
def test_elements_are_those_of_unbounded_integers(size: int, seed: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, size - 1))
    element = Permutation(size, seed)(np.array([place], np.uint64)).item()
    assert element == expected_element(size, place, seed)


@pytest.mark.parametrize("size", [2, 3, 10, 100])
def test_every_element_is_as_likely_at_every_place(size: int) -> None:
    draws = 6_000 // size
    counts = np.zeros((size, size))
    for seed in range(draws):
        counts[np.arange(size), order(size, seed)] += 1
    expected = draws / size
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert chi_squared < freedom + 5 * (2 * freedom) ** 0.5  # five standard deviations


@pytest.mark.parametrize("size", [0, MOST_ELEMENTS + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="permutation of"):
        Permutation(size, 1)
