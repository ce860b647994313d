"""Messages are assembled from any pieces, in about the memory of their bytes."""

from __future__ import annotations

import tracemalloc

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.transport.http2.messages import PREFIX_BYTES, Assembler, MessageInbox, MessageRefused
from tests.support.raw_http2 import message


@given(
    st.lists(st.binary(max_size=9000), max_size=12),
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    st.booleans(),
)
def test_messages_survive_any_cuts(contents: list[bytes], cuts: list[int], direct: bool) -> None:
    inbox = MessageInbox()
    assembler = Assembler(inbox, 10000)
    stream = memoryview(b"".join(map(message, contents)))
    turn = 0
    while stream:
        count = cuts[turn % len(cuts)]
        turn += 1
        room = assembler.receive_buffer()
        if direct and room is not None:
            count = min(count, len(room), len(stream))
            room[:count] = stream[:count]
            assembler.advance(count)
        else:
            assembler.feed(stream[:count])
        stream = stream[count:]
    assert not assembler.within
    assert inbox.held_bytes == sum(PREFIX_BYTES + len(each) for each in contents)
    assert [bytes(inbox.take()) for _ in contents] == contents
    assert not inbox
    assert inbox.held_bytes == 0


def test_a_message_is_not_overwritten_by_later_ones() -> None:
    inbox = MessageInbox()
    assembler = Assembler(inbox, 10000)
    for content in (b"a" * 5000, b"b" * 10, b"c" * 5000):
        assembler.feed(memoryview(message(content)))
    kept = [inbox.take() for _ in range(3)]
    assembler.feed(memoryview(message(b"x" * 5000)))
    assert [bytes(each[:1]) for each in kept] == [b"a", b"b", b"c"]


def test_many_tiny_messages_take_little_memory() -> None:
    inbox = MessageInbox()
    assembler = Assembler(inbox, 100)
    pieces = memoryview(message(b"") * 1000)
    tracemalloc.start()
    try:
        for _ in range(100):
            assembler.feed(pieces)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2 * inbox.held_bytes


def test_long_and_compressed_messages_are_refused_by_their_prefix() -> None:
    for start, code, text in (
        (b"\0\0\0\0\x0b", grpc.StatusCode.RESOURCE_EXHAUSTED, "11 bytes.* 10"),
        (b"\x01\0\0\0\x01", grpc.StatusCode.UNIMPLEMENTED, "compressed"),
    ):
        with pytest.raises(MessageRefused, match=text) as caught:
            Assembler(MessageInbox(), 10).feed(memoryview(start))
        assert caught.value.code is code
