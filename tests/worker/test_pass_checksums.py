"""The checksum of a pass is that of all that it puts out; passes of checked micro-batches alone have one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mesh.exact_transfer import ExactArray
from services.pipeline.schedule import Pass
from training.pipeline.exchange import LocalExchange
from worker.pass_checksums import PassChecksums

RANGES = 3


def array(seed: int, dtype: type = np.float32) -> ExactArray:
    return np.random.default_rng(seed).integers(0, 99, (2, 3, 4)).astype(dtype)


def run_backward(
    checksums: PassChecksums, *, gradient: ExactArray, parameters: int, tied: ExactArray
) -> None:
    """Run the last range's backward pass of micro-batch 5."""
    exchange = checksums.watch(LocalExchange())
    checksums.note(Pass(True, 2, 5), parameters)
    exchange.send(Pass(True, 1, 5), gradient)
    exchange.send_tied(5, tied)
    assert exchange.receive(Pass(True, 1, 5)) is gradient
    assert exchange.receive_tied(5) is tied


def checksum_of_backward(**outputs: Any) -> int:
    checksums = PassChecksums(RANGES, {5})
    run_backward(checksums, **{"gradient": array(1), "parameters": 9, "tied": array(2), **outputs})
    (message,) = checksums.to_messages()
    assert (message.micro_batch, message.place) == (5, RANGES)
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
            checksums.note(Pass(True, index, micro_batch), index)
    found = [(each.micro_batch, each.place) for each in checksums.to_messages()]
    assert found == [(micro_batch, place) for micro_batch in (1, 4) for place in (0, 1, 3, 4, 5)]
    first, second = (checksums.to_messages()[at : at + 5] for at in (0, 5))
    assert [each.crc32c for each in first] == [each.crc32c for each in second]


def test_without_checked_micro_batches_nothing_is_watched() -> None:
    exchange = LocalExchange()
    assert PassChecksums(RANGES, ()).watch(exchange) is exchange
