"""Rings of slots: payloads come through whole and in order, slots come back, and nothing half-written is taken."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.tensors_pb2 import Chunk, ChunkHeader, SharedSlot
from services.errors import Refused
from services.streams import LinkClosed
from services.tensors.shared import FLOWING_SLOTS, SLOT_BYTES, SlotReceiver, SlotSender
from services.tensors.wire import TensorChunk

SLOTS = 8
LENT_SLOTS = SLOTS - FLOWING_SLOTS


class Ring:
    """Both ends of one direction, in this process, with small slots."""

    def __init__(self, slot_bytes: int = 64) -> None:
        self.slots = np.zeros((SLOTS, slot_bytes), np.uint8)
        self.sequences = np.zeros(SLOTS, np.uint64)
        returned, returning = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.returning = returning
        self.sender = SlotSender(self.slots, self.sequences, returned)
        self.receiver = SlotReceiver(self.slots, self.sequences, returning)
        self.messages = 0

    def send(self, content: bytes) -> bytes:
        """Put a payload into a slot, which must be free now; returns the message."""
        self.messages += 1
        slot = asyncio.run(asyncio.wait_for(self.sender.free_slot(), 5))
        return self.sender.put(TensorChunk(ChunkHeader(index=self.messages), content), slot)

    def take(self, message: bytes) -> TensorChunk:
        chunk = Chunk.FromString(message)
        assert chunk.payload == b"", "the payload does not travel"
        return self.receiver.take(chunk.header, chunk.shared)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring()
    yield made
    made.close()


def content_of(number: int) -> bytes:
    return bytes((number * 7 + each) % 256 for each in range(1 + number % 64))


def test_a_payload_comes_as_a_read_only_view_of_the_memory(ring: Ring) -> None:
    chunk = ring.take(ring.send(b"content"))
    assert chunk.header.index == 1
    assert bytes(chunk.payload) == b"content"
    values = np.frombuffer(chunk.payload, np.uint8)
    assert np.shares_memory(values, ring.slots)
    assert not values.flags.writeable, "a sum may be added into what is writeable"


def test_a_slot_comes_back_when_the_last_view_of_its_payload_is_gone(ring: Ring) -> None:
    chunk = ring.take(ring.send(b"content"))
    part = np.frombuffer(chunk.payload, np.uint8)[2:4].reshape(2, 1)
    del chunk
    gc.collect()
    assert ring.receiver.lent == 1
    del part
    assert ring.receiver.lent == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.just("send"), st.just("take"), st.integers(0, 20)), max_size=120))
def test_whatever_is_sent_taken_and_let_go_of(actions: list[str | int]) -> None:
    """`send` if a slot is free, `take` if a message waits, a number: let go of that payload."""
    ring = Ring()
    sent, on_the_way, kept = 0, [], []
    try:
        for action in [*actions, *["take"] * SLOTS]:
            if action == "send" and len(on_the_way) < SLOTS - LENT_SLOTS:
                # Whatever the receiver keeps, the slots that it must not keep are there.
                sent += 1
                on_the_way.append((sent, ring.send(content_of(sent))))
            elif action == "take" and on_the_way:
                number, message = on_the_way.pop(0)
                kept.append((number, ring.take(message)))
            elif isinstance(action, int) and kept:
                kept.pop(action % len(kept))
            assert ring.receiver.lent <= LENT_SLOTS
            for number, chunk in kept:
                assert chunk.header.index == number
                assert bytes(chunk.payload) == content_of(number), "nobody writes over what is viewed"
        kept.clear()
        chunk = None
        assert ring.receiver.lent == 0
        for _ in range(SLOTS):
            asyncio.run(asyncio.wait_for(ring.sender.free_slot(), 5))
    finally:
        ring.close()


def test_a_sender_without_a_free_slot_waits_for_one(ring: Ring) -> None:
    held = [ring.take(ring.send(b"held")) for _ in range(LENT_SLOTS)]
    waiting = [ring.send(b"on its way") for _ in range(SLOTS - LENT_SLOTS)]

    async def run() -> bytes:
        slot = asyncio.ensure_future(ring.sender.free_slot())
        await asyncio.sleep(0)
        assert not slot.done()
        freeing = threading.Thread(target=held.pop)  # payloads are let go of on other threads too
        freeing.start()
        free = await asyncio.wait_for(slot, 5)
        freeing.join()
        return ring.sender.put(TensorChunk(ChunkHeader(index=9), b"next"), free)

    message = asyncio.run(run())
    for each in waiting:
        assert bytes(ring.take(each).payload) == b"on its way"
    assert bytes(ring.take(message).payload) == b"next"


def test_a_receiver_that_keeps_everything_gets_copies_and_the_ring_flows(ring: Ring) -> None:
    kept = [ring.take(ring.send(content_of(number))) for number in range(5 * SLOTS)]
    assert ring.receiver.lent == LENT_SLOTS
    assert [bytes(chunk.payload) for chunk in kept] == [content_of(number) for number in range(5 * SLOTS)]


def test_what_is_viewed_outlives_the_link(ring: Ring) -> None:
    chunk = ring.take(ring.send(b"content"))
    ring.close()
    assert bytes(chunk.payload) == b"content"
    del chunk  # the pipe is closed: nothing to give back


def test_a_writer_that_dies_in_a_slot_leaves_no_whole_payload(ring: Ring) -> None:
    message = ring.send(b"content")
    shared = Chunk.FromString(message).shared
    ring.sequences[shared.slot] = 0  # as while a payload is being written
    with pytest.raises(
        Refused, match=r"chunk 1: .*slot \d holds payload number 0, expected 1: it is not whole"
    ):
        ring.take(message)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slot": SLOTS}, f"slot {SLOTS}, expected one of {SLOTS}"),
        ({"slot": 2**32 - 1}, "slot 4294967295, expected one of"),
        ({"payload_bytes": 65}, "a payload of 65 bytes, expected 64 at most"),
        ({"payload_bytes": 2**32 - 1}, "a payload of 4294967295 bytes"),
        ({"sequence": 0}, "payload number 0, expected 2"),
        ({"sequence": 1}, "payload number 1, expected 2"),
        ({"sequence": 2**64 - 1}, "payload number 18446744073709551615, expected 2"),
        ({"slot": 0}, "slot 0 holds payload number 0, expected 2: it is not whole"),
    ],
)
def test_references_to_anything_else_are_refused(ring: Ring, changed: dict[str, int], said: str) -> None:
    ring.take(ring.send(b"first"))
    chunk = Chunk.FromString(ring.send(b"second"))
    assert chunk.shared.slot != 0, "the case of slot 0 needs one that is not written"
    shared = SharedSlot()
    shared.CopyFrom(chunk.shared)
    for name, value in changed.items():
        setattr(shared, name, value)
    with pytest.raises(Refused, match=said):
        ring.receiver.take(chunk.header, shared)
    assert bytes(ring.receiver.take(chunk.header, chunk.shared).payload) == b"second", (
        "refusing changes nothing"
    )


def test_the_same_reference_twice_and_a_slot_that_is_still_viewed_are_refused(ring: Ring) -> None:
    message = ring.send(b"first")
    kept = ring.take(message)
    with pytest.raises(Refused, match="payload number 1, expected 2"):
        ring.take(message)
    slot = Chunk.FromString(message).shared.slot
    overwriting = ring.sender.put(TensorChunk(ChunkHeader(), b"xxxxx"), slot)
    with pytest.raises(Refused, match=f"slot {slot}, which has not been given back"):
        ring.take(overwriting)
    del kept


@pytest.mark.parametrize("slot", [0, SLOTS, 255])
def test_a_slot_that_was_not_lent_cannot_be_given_back(ring: Ring, slot: int) -> None:
    for _ in range(SLOTS):
        ring.send(b"content")
    os.write(ring.returning, bytes((slot, slot)))
    with pytest.raises(LinkClosed, match=f"gave back slot {slot}, which it does not have"):
        ring.send(b"content")


def test_a_slot_holds_the_longest_payload() -> None:
    ring = Ring(SLOT_BYTES)
    content = np.random.default_rng(1).bytes(1024 * 1024)
    chunk = ring.take(ring.send(content))
    assert bytes(chunk.payload) == content
    del chunk
    ring.close()
