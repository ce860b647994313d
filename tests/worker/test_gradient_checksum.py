"""The checksum of a micro-batch's gradient depends on its bits, not on how it is computed or what is added later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from worker.gradient_checksum import GradientChecksum

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=8)


def _build_layout(sizes: list[int]) -> Layout:
    return Layout.build((f"t{at}", (size,), False, f"t{at}", False) for at, size in enumerate(sizes))


def _draw_gradient(layout: Layout, seed: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(layout.elements).astype(np.float32)


def _compute_checksum(
    layout: Layout, values: Float32Array, offsets: list[int], then: Callable[[int], None]
) -> int:
    checksum = GradientChecksum(layout.entries, values)
    for offset in offsets:
        checksum.advance_to(offset)
        then(offset)
    return checksum.crc32c


@given(SIZES, st.integers(0, 99), st.data())
def test_it_does_not_depend_on_the_pieces_nor_on_what_is_added_to_them(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    layout = _build_layout(sizes)
    at_once = _compute_checksum(layout, _draw_gradient(layout, seed), [0], lambda offset: None)
    stops = sorted(data.draw(st.sets(st.sampled_from([each.offset for each in layout.entries]))) | {0})[::-1]
    values = _draw_gradient(layout, seed)

    def add(offset: int) -> None:
        values[offset:] += 1

    assert _compute_checksum(layout, values, stops, add) == at_once


@given(SIZES, st.data())
def test_a_parameter_has_the_same_checksum_in_a_part_of_the_gradient(
    sizes: list[int], data: st.DataObject
) -> None:
    layout = _build_layout(sizes)
    values = _draw_gradient(layout, 1)
    first = data.draw(st.integers(0, len(sizes) - 1))
    whole, part = GradientChecksum(layout.entries, values), layout.entries[first:]
    of_part = GradientChecksum(part, values[part[0].offset :])
    for checksum in (whole, of_part):
        checksum.advance_to(0)
    assert list(of_part.entry_checksums) == list(whole.entry_checksums[first:])


@given(SIZES, st.data())
def test_every_bit_counts(sizes: list[int], data: st.DataObject) -> None:
    layout = _build_layout(sizes)
    values = _draw_gradient(layout, 1)
    before = _compute_checksum(layout, values, [0], lambda offset: None)
    at, bit = data.draw(st.integers(0, layout.elements - 1)), data.draw(st.integers(0, 31))
    values.view(np.uint32)[at] ^= np.uint32(1 << bit)
    assert _compute_checksum(layout, values, [0], lambda offset: None) != before
