"""Memory of leases' sums is reused, but never while an aggregator may still read it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from plane.lease_sums import LeaseSums
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.shared_memory import MappedArray

ELEMENTS = CHUNK_ELEMENTS + 10
PARTS = LayoutParts([(0, ELEMENTS)])


def test_retired_memory_is_reused_when_newer_weights_have_arrived() -> None:
    sums = LeaseSums()
    first = sums.borrow(1, PARTS, 4)
    assert sums.find(1) is first
    sums.retire(1)
    assert sums.find(1) is None
    assert sums.borrow(2, PARTS, 4).values is not first.values, "an aggregator may still add it up"
    sums.reuse_retired()
    assert sums.borrow(3, PARTS, 4).values is first.values
    assert sums.borrow(4, PARTS, 4).values is not first.values, "it is in use"


def test_memory_that_a_step_did_not_need_is_freed() -> None:
    sums = LeaseSums()
    for lease in (1, 2, 3):
        sums.borrow(lease, PARTS, 4)
    for lease in (1, 2, 3):
        sums.retire(lease)
    sums.reuse_retired()
    sums.borrow(4, PARTS, 4)
    sums.retire(4)
    sums.reuse_retired()
    assert len(sums._free) == 1, "a step of one lease needs memory for one"


@pytest.mark.parametrize("wire_bytes", [2, 4])
def test_an_aggregator_on_this_host_sees_sums_in_the_wire_type(wire_bytes: int) -> None:
    sums = LeaseSums()
    sums.sharing = True
    taken = sums.borrow(1, PARTS, wire_bytes)
    assert taken.shared is not None
    seen = MappedArray(os.getpid(), taken.shared.descriptor, taken.shared.identity)
    assert seen.payload.size == wire_bytes * ELEMENTS
    assert seen.place(1).size == wire_bytes * 10
    taken.values[:] = 1.5
    in_place = seen.payload.view(np.float32)[: ELEMENTS * wire_bytes // 4]
    assert bool((in_place == 1.5).all()) == (wire_bytes == 4), "float32 is summed where it is sent from"
    assert taken.piece(CHUNK_ELEMENTS, 10).size == 10


def test_private_memory_is_not_reused_for_a_shared_sum() -> None:
    sums = LeaseSums()
    sums.borrow(1, PARTS, 4)
    sums.retire(1)
    sums.reuse_retired()
    sums.sharing = True
    assert sums.borrow(1, PARTS, 4).shared is not None


def test_memory_of_both_kinds_is_reused() -> None:
    """A worker has memory of both kinds in a step in which its aggregator moved to this host or from it."""
    sums = LeaseSums()
    plain = sums.borrow(1, PARTS, 4)
    sums.sharing = True
    shared = sums.borrow(2, PARTS, 4)
    for lease in (1, 2):
        sums.retire(lease)
    sums.reuse_retired()
    assert sums.borrow(3, PARTS, 4) is shared
    sums.sharing = False
    assert sums.borrow(4, PARTS, 4) is plain


def test_sums_are_sent_when_no_shared_memory_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_as_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.tensors.shared_memory.os.posix_fallocate", fail_as_full)
    sums = LeaseSums()
    sums.sharing = True
    assert sums.borrow(1, PARTS, 4).shared is None
    assert "gRPC" in caplog.text and "No space left on device" in caplog.text


@pytest.mark.parametrize("sharing", [False, True])
def test_pieces_of_a_row_lie_one_part_after_another(sharing: bool) -> None:
    sums = LeaseSums()
    sums.sharing = sharing
    parts = LayoutParts([(100, 110), (300, 320)])
    taken = sums.borrow(1, parts, 4, in_row=True)
    assert taken.in_row and taken.values.size == 30
    assert (taken.shared is not None) == sharing
    taken.values[:] = range(30)
    assert taken.piece(305, 2).tolist() == [15, 16]
    assert (taken.position(100), taken.position(305)) == (0, 15)
    with pytest.raises(ValueError, match="in none of"):
        taken.piece(200, 1)
