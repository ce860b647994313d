"""Memory of leases' sums is reused, but never while an aggregator may still read it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from services.tensors import shared_memory
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.shared_memory import MappedArray
from worker.sum_memory import SumMemory

ELEMENTS = CHUNK_ELEMENTS + 10
PARTS = LayoutParts([(0, ELEMENTS)])


def test_retired_memory_is_reused_when_newer_weights_have_arrived() -> None:
    memory = SumMemory()
    first = memory.take(PARTS, 4)
    memory.retire(first)
    assert memory.take(PARTS, 4).values is not first.values, "an aggregator may still add it up"
    memory.reuse_retired()
    assert memory.take(PARTS, 4).values is first.values
    assert memory.take(PARTS, 4).values is not first.values, "it is in use"


def test_memory_that_a_step_did_not_need_is_freed() -> None:
    memory = SumMemory()
    held = [memory.take(PARTS, 4) for _ in range(3)]
    for each in held:
        memory.retire(each)
    memory.reuse_retired()
    memory.retire(memory.take(PARTS, 4))
    memory.reuse_retired()
    assert len(memory._free) == 1, "a step of one lease needs memory for one"


@pytest.mark.parametrize("wire_bytes", [2, 4])
def test_an_aggregator_on_this_host_sees_sums_in_the_wire_type(wire_bytes: int) -> None:
    memory = SumMemory()
    memory.sharing = True
    taken = memory.take(PARTS, wire_bytes)
    assert taken.shared is not None
    seen = MappedArray(os.getpid(), taken.shared.descriptor, taken.shared.identity)
    assert seen.payload.size == wire_bytes * ELEMENTS
    assert seen.place(1).size == wire_bytes * 10
    taken.values[:] = 1.5
    in_place = seen.payload.view(np.float32)[: ELEMENTS * wire_bytes // 4]
    assert bool((in_place == 1.5).all()) == (wire_bytes == 4), "float32 is summed where it is sent from"
    assert taken.piece(CHUNK_ELEMENTS, 10).size == 10


def test_private_memory_is_not_reused_for_a_shared_sum() -> None:
    memory = SumMemory()
    plain = memory.take(PARTS, 4)
    memory.retire(plain)
    memory.reuse_retired()
    memory.sharing = True
    assert memory.take(PARTS, 4).shared is not None


def test_sums_are_sent_when_no_shared_memory_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_as_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", fail_as_full)
    memory = SumMemory()
    memory.sharing = True
    assert memory.take(PARTS, 4).shared is None
    assert "gRPC" in caplog.text and "No space left on device" in caplog.text


@pytest.mark.parametrize("sharing", [False, True])
def test_pieces_of_a_row_lie_one_part_after_another(sharing: bool) -> None:
    memory = SumMemory()
    memory.sharing = sharing
    parts = LayoutParts([(100, 110), (300, 320)])
    taken = memory.take(parts, 4, in_row=True)
    assert taken.in_row and taken.values.size == 30
    assert (taken.shared is not None) == sharing
    taken.values[:] = range(30)
    assert taken.piece(305, 2).tolist() == [15, 16]
    assert (taken.position(100), taken.position(305)) == (0, 15)
    with pytest.raises(ValueError, match="in none of"):
        taken.piece(200, 1)
