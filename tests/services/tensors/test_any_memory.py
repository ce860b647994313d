"""Tests that any offer, answer or reference to shared memory is refused or stays within that memory."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plane.streams.shared_memory_link import (
    MAX_PLACES,
    SHARED_MEMORY_KEY,
    ClientTensorLink,
    ServerTensorLink,
)
from protos.tensors_pb2 import FLOAT32, Chunk, ChunkHeader, SharedPlaces
from services.errors import Refused
from services.tensors.shared_memory import MappedArray, NotShared
from services.transport.links import LinkClosed
from tests.plane.streams.test_shared_memory_link import array_of, confirm
from tests.services.tensors.test_shared_memory import memory
from tests.support.anything import is_one_line, message

NUMBERS = st.integers(-1, 70).map(str) | st.sampled_from([str(os.getpid()), "9" * 5000, "1_0", "x", ""])
TOKENS = st.sampled_from(["00" * 32, "00", "zz" * 32, ""]) | st.text(max_size=8)
OFFERS = st.tuples(NUMBERS, NUMBERS, TOKENS).map(" ".join) | st.text(max_size=30)


@settings(max_examples=150, deadline=None)
@given(OFFERS)
def test_any_offer_is_declined_or_refused(offer: str) -> None:
    try:
        link = ServerTensorLink("peer", ((SHARED_MEMORY_KEY, offer),), enabled=True)
    except Refused as error:
        assert is_one_line(error)
        return
    assert not link.shares
    assert link.metadata == ((SHARED_MEMORY_KEY, "no"),)
    link.close()


@settings(max_examples=100, deadline=None)
@given(st.tuples(TOKENS, NUMBERS, NUMBERS).map(" ".join) | st.text(max_size=30))
def test_any_answer_is_declined_or_refused(answer: str) -> None:
    link = ClientTensorLink("peer", enabled=True, count=lambda _: None)
    try:
        confirm(link, ((SHARED_MEMORY_KEY, answer),))
    except LinkClosed as closed:
        assert str(closed).isprintable()
    assert not link.shares
    link.close()


@settings(max_examples=150, deadline=None)
@given(
    numbers=st.lists(
        st.integers(0, 5) | st.sampled_from([64, 200, 1 << 40, (1 << 64) - 1]), min_size=5, max_size=5
    ),
    size_bytes=st.sampled_from([8, 4096, 4096 + 64, 4096 + 200]),
    chunk=st.integers(0, 9) | st.just((1 << 32) - 1),
)
def test_any_memory_header_stays_in_bounds(numbers: list[int], size_bytes: int, chunk: int) -> None:
    made = memory(np.array(numbers, "<u8").tobytes()[:size_bytes], size_bytes)
    try:
        mapped = MappedArray(os.getpid(), made, numbers[0])
    except NotShared:
        return
    finally:
        os.close(made)
    assert mapped.payload.size < size_bytes
    assert mapped.place(chunk).size <= mapped.payload.size
    assert mapped.is_marked(chunk, 7) in (True, False)


ARRAY = array_of(2)
PLACES = message(
    SharedPlaces,
    identity=st.just(ARRAY.identity),
    descriptor=st.just(ARRAY.descriptor),
    indices=st.lists(st.integers(0, 3), max_size=MAX_PLACES + 1),
)


@settings(max_examples=150, deadline=None)
@given(places=PLACES, header=message(ChunkHeader))
def test_any_reference_stays_in_bounds(places: SharedPlaces, header: ChunkHeader) -> None:
    caller = ClientTensorLink("peer", enabled=True, count=lambda _: None)
    server = ServerTensorLink("peer", caller.metadata, enabled=True)
    try:
        chunks = server.deserialize(Chunk(header=header, shared=places).SerializeToString())
    except Refused as error:
        assert is_one_line(error)
    else:
        assert 1 <= len(chunks) <= MAX_PLACES
        assert all(len(chunk.payload) <= ARRAY.payload.size for chunk in chunks)
    finally:
        caller.close()
        server.close()


def test_no_flipped_bit_of_a_reference_goes_unnoticed() -> None:
    header = ChunkHeader(job="j", epoch=1, generation=1, step=2, lease=3, dtype=FLOAT32)
    caller = ClientTensorLink("peer", enabled=True, count=lambda _: None)
    server = ServerTensorLink("peer", caller.metadata, enabled=True)
    try:
        # A flip can turn the checksum into another field, if its value is valid there: one in 25. Hence 30 sequences.
        for sequence in range(30):
            sent = caller.refer(header, ARRAY, sequence, [0, 1])
            assert [chunk.sequence for chunk in server.deserialize(sent)] == [sequence, sequence]
            for bit in range(8 * len(sent)):
                damaged = bytearray(sent)
                damaged[bit // 8] ^= 1 << bit % 8
                with pytest.raises((Refused, ValueError)) as refused:
                    server.deserialize(bytes(damaged))
                assert str(refused.value).isprintable()
        with pytest.raises(Refused, match=r"^chunk 0: shared memory: .*crc32c 0x"):
            server.deserialize(sent.replace(b"j", b"k"))
    finally:
        caller.close()
        server.close()
