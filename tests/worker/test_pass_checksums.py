"""The checksum of a pass is that of all that it puts out; passes of checked micro-batches alone have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native import crc32c
from services.pipeline.exchange import ExactArray, LocalExchange
from services.pipeline.schedule import Pass
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from worker.pass_checksums import PassChecksums

RANGES = 3
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=8)


def array(seed: int, dtype: type = np.float32) -> ExactArray:
    return np.random.default_rng(seed).integers(0, 99, (2, 3, 4)).astype(dtype)


def run_backward(
    checksums: PassChecksums, *, gradient: ExactArray, parameters: int, tied: ExactArray
) -> None:
    """Run the last range's backward pass of micro-batch 5."""
    exchange = checksums.watch(LocalExchange())
    checksums.note(Pass(True, 2, 5), [parameters])
    exchange.send(Pass(True, 1, 5), gradient)
    exchange.send_tied(5, tied)
    assert exchange.receive(Pass(True, 1, 5)) is gradient
    assert exchange.receive_tied(5) is tied


def checksum_of_backward(**outputs: Any) -> int:
    checksums = PassChecksums(RANGES, {5})
    run_backward(checksums, **{"gradient": array(1), "parameters": 9, "tied": array(2), **outputs})
    (message,) = checksums.to_messages()
    assert (message.micro_batch, message.place) == (5, RANGES - 1)
    return message.crc32c


def test_all_that_a_backward_pass_puts_out_counts() -> None:
    right = checksum_of_backward()
    assert checksum_of_backward() == right
    assert right not in (
        checksum_of_backward(gradient=array(3)),
        checksum_of_backward(parameters=8),
        checksum_of_backward(tied=array(3)),
    )


def test_the_layout_of_an_array_in_memory_does_not_count() -> None:
    wide = np.asfortranarray(array(1))
    assert checksum_of_backward(gradient=wide) == checksum_of_backward(gradient=array(1))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_passes_come_in_their_order_for_each_checked_micro_batch(dtype: type) -> None:
    checksums = PassChecksums(RANGES, {1, 4})
    exchange = checksums.watch(LocalExchange())
    for micro_batch in (4, 1, 2):
        for index in range(RANGES - 1):
            exchange.send(Pass(False, index + 1, micro_batch), array(index, dtype))
        for index in reversed(range(RANGES)):
            checksums.note(Pass(True, index, micro_batch), [index])
    found = [(each.micro_batch, each.place) for each in checksums.to_messages()]
    assert found == [(micro_batch, place) for micro_batch in (1, 4) for place in range(5)]
    first, second = (checksums.to_messages()[at : at + 5] for at in (0, 5))
    assert [each.crc32c for each in first] == [each.crc32c for each in second]


def test_without_checked_micro_batches_nothing_is_watched() -> None:
    exchange = LocalExchange()
    assert PassChecksums(RANGES, ()).watch(exchange) is exchange


def build_layout(sizes: list[int]) -> Layout:
    return Layout.build((f"t{at}", (size,), False, f"t{at}", False) for at, size in enumerate(sizes))


def draw_gradient(layout: Layout) -> Float32Array:
    return np.random.default_rng(1).standard_normal(layout.elements).astype(np.float32)


def checksum_of_gradient(
    layout: Layout, gradient: Float32Array, offsets: list[int], then: Callable[[int], None]
) -> int:
    """Return the checksum of a whole model's gradient that becomes ready down to some offsets."""
    one, checksums = Pass(True, 0, 5), PassChecksums(1, {5})

    def compute(out: Float32Array, ready: Callable[[int], None]) -> str:
        for offset in offsets:
            ready(offset)
        return "finished"

    assert checksums.watch_gradient(one, layout.entries, compute)(gradient, then) == "finished"
    (message,) = checksums.to_messages()
    assert (message.micro_batch, message.place) == (5, 0)
    return message.crc32c


@given(SIZES)
def test_a_whole_gradient_has_the_checksum_of_the_parameters_checksums(sizes: list[int]) -> None:
    layout = build_layout(sizes)
    gradient = draw_gradient(layout)
    of_parameters = [
        crc32c.value(gradient[each.offset : each.stop].view(np.uint8)) for each in layout.entries
    ]
    found = checksum_of_gradient(layout, gradient, [0], lambda offset: None)
    assert found == crc32c.value(np.array(of_parameters, "<u4").view(np.uint8))


@given(SIZES, st.data())
def test_it_does_not_depend_on_the_pieces_nor_on_what_is_added_to_them(
    sizes: list[int], data: st.DataObject
) -> None:
    layout = build_layout(sizes)
    at_once = checksum_of_gradient(layout, draw_gradient(layout), [0], lambda offset: None)
    offsets = sorted(data.draw(st.sets(st.sampled_from([each.offset for each in layout.entries]))) | {0})[
        ::-1
    ]
    gradient = draw_gradient(layout)

    def add(offset: int) -> None:
        gradient[offset:] += 1

    assert checksum_of_gradient(layout, gradient, offsets, add) == at_once


@given(SIZES, st.data())
def test_every_bit_counts(sizes: list[int], data: st.DataObject) -> None:
    layout = build_layout(sizes)
    gradient = draw_gradient(layout)
    before = checksum_of_gradient(layout, gradient, [0], lambda offset: None)
    at, bit = data.draw(st.integers(0, layout.elements - 1)), data.draw(st.integers(0, 31))
    gradient.view(np.uint32)[at] ^= np.uint32(1 << bit)
    assert checksum_of_gradient(layout, gradient, [0], lambda offset: None) != before


@given(SIZES, SIZES)
def test_the_gradient_of_a_range_lies_at_the_start_of_its_array(first: list[int], second: list[int]) -> None:
    layout, own = build_layout(first + second), build_layout(second)
    gradient, found = draw_gradient(own), []
    for entries in (own.entries, layout.entries[len(first) :]):
        checksums = PassChecksums(1, {5})
        checksums.watch_gradient(Pass(True, 0, 5), entries, lambda out, ready: ready(0))(
            gradient, lambda offset: None
        )
        found.append(checksums.to_messages())
    assert found[0] == found[1]
