"""Tests of stripes: each element is in exactly one, with the same weight decay as in the layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe


def layout_of(sizes: list[int]) -> Layout:
    return Layout.build((f"p{n}", (size,), n % 2 == 0, f"e{n}", False) for n, size in enumerate(sizes))


def decay_mask(layout: Layout) -> np.ndarray:
    return np.concatenate(
        [np.full(entry.size, entry.decays) for entry in layout.entries] or [np.zeros(0, bool)]
    )


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, int(1.5 * CHUNK_ELEMENTS)), min_size=1, max_size=6),
    count=st.integers(1, 5),
)
def test_stripes_partition_the_layout(sizes: list[int], count: int) -> None:
    layout = layout_of(sizes)
    elements = layout.elements
    whole, seen = decay_mask(layout), np.zeros(elements, int)
    for index in range(count):
        stripe = Stripe(index, count)
        own = stripe.layout_of(layout)
        assert (own.elements, own.chunks) == (stripe.element_count(elements), stripe.chunk_count(elements))
        decays = decay_mask(own)
        for part, local in stripe.ranges(elements):
            seen[part] += 1
            assert np.array_equal(whole[part], decays[local])
    assert (seen == 1).all()


def test_indices_in_the_layout_and_in_the_stripe() -> None:
    stripe = Stripe(1, 3)
    assert [chunk for chunk in range(8) if stripe.contains(chunk)] == [1, 4, 7]
    assert [stripe.to_local(chunk) for chunk in (1, 4, 7)] == [0, 1, 2]
    assert [stripe.to_global(local) for local in range(3)] == [1, 4, 7]


@pytest.mark.parametrize("index", [1, 2])
def test_layout_with_fewer_chunks_than_stripes_leaves_some_empty(index: int) -> None:
    assert Stripe(index, 3).layout_of(layout_of([5, 7])).elements == 0
