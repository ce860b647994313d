"""Memory of leases' sums is used again, but never while an aggregator may still read it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from services.tensors import shared_memory
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import MappedArray
from worker.sum_memory import SumMemory

ELEMENTS = CHUNK_ELEMENTS + 10


def test_memory_rests_until_newer_weights_have_come() -> None:
    memory = SumMemory()
    first = memory.take(ELEMENTS, 4)
    memory.rest(first)
    assert memory.take(ELEMENTS, 4).values is not first.values, "an aggregator may still add it up"
    memory.committed()
    assert memory.take(ELEMENTS, 4).values is first.values
    assert memory.take(ELEMENTS, 4).values is not first.values, "it is in use"


def test_what_no_step_needed_is_given_back() -> None:
    memory = SumMemory()
    held = [memory.take(ELEMENTS, 4) for _ in range(3)]
    for each in held:
        memory.rest(each)
    memory.committed()
    memory.rest(memory.take(ELEMENTS, 4))
    memory.committed()
    assert len(memory._free) == 1, "a step of one lease needs memory for one"


@pytest.mark.parametrize("wire_bytes", [2, 4])
def test_an_aggregator_on_this_host_sees_it_in_the_wire_type(wire_bytes: int) -> None:
    memory = SumMemory()
    memory.sharing = True
    taken = memory.take(ELEMENTS, wire_bytes)
    assert taken.shared is not None
    seen = MappedArray(os.getpid(), taken.shared.descriptor, taken.shared.identity)
    assert seen.payload.size == wire_bytes * ELEMENTS
    assert seen.place(1).size == wire_bytes * 10
    taken.values[:] = 1.5
    in_place = seen.payload.view(np.float32)[: ELEMENTS * wire_bytes // 4]
    assert bool((in_place == 1.5).all()) == (wire_bytes == 4), "float32 is summed where it is sent from"
    assert taken.chunk(1).size == 10


def test_what_was_made_for_one_kind_of_link_is_not_used_for_another() -> None:
    memory = SumMemory()
    plain = memory.take(ELEMENTS, 4)
    memory.rest(plain)
    memory.committed()
    memory.sharing = True
    assert memory.take(ELEMENTS, 4).shared is not None


def test_without_memory_to_share_sums_are_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    memory = SumMemory()
    memory.sharing = True
    assert memory.take(ELEMENTS, 4).shared is None
    assert "gradients over gRPC: no shared memory can be made for them here" in caplog.text
