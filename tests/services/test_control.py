"""Control streams: whatever happens to a message on its way, it is read as it was sent, or it ends the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import cluster_pb2 as pb
from services.checksums import encode
from services.control import Reader
from services.streams import LinkClosed
from tests.anything import message

WELCOME = pb.WorkerCommand(epoch=3, welcome=pb.Welcome(name="a", heartbeat_seconds=5.0))
LEASE = pb.WorkerCommand(epoch=3, lease=pb.Lease(job="j", generation=1, step=4, lease=(3 << 32) + 1, count=4))


def commands(contents: Iterable[bytes]) -> list[pb.WorkerCommand]:
    """What a stream of these bytes says until it ends."""
    waiting = iter(contents)

    async def read() -> object:
        return next(waiting, grpc.aio.EOF)

    async def scenario() -> list[pb.WorkerCommand]:
        reader = Reader(read, pb.WorkerCommand, "Attend")
        found = []
        while (each := await reader.next()) is not None:
            found.append(each)
        return found

    return asyncio.run(scenario())


def test_messages_are_read_to_the_end() -> None:
    assert commands([encode(WELCOME), encode(LEASE)]) == [WELCOME, LEASE]
    assert commands([each.SerializeToString() for each in (WELCOME, LEASE)]) == [WELCOME, LEASE]


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (encode(LEASE)[:9], "of 9 bytes, was damaged: expected a WorkerCommand"),
        (encode(LEASE)[:-1] + b"\0", "was damaged: crc32c 0x"),
        (b"", "of 0 bytes, was damaged: expected a crc32c, as those before it had one"),
    ],
)
def test_a_broken_message_is_told_by_stream_number_and_reason(damaged: bytes, why: str) -> None:
    with pytest.raises(LinkClosed, match=f"Attend: message 2, .*{why}") as closed:
        commands([encode(WELCOME), damaged, encode(LEASE)])
    assert closed.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_no_flipped_bit_and_no_cut_passes_unseen() -> None:
    sent = encode(LEASE)
    flipped = [
        sent[: bit // 8] + bytes([sent[bit // 8] ^ 1 << bit % 8]) + sent[bit // 8 + 1 :]
        for bit in range(8 * len(sent))
    ]
    for damaged in (*flipped, *(sent[:length] for length in range(len(sent)))):
        with pytest.raises(LinkClosed, match="Attend: message 2"):
            commands([encode(WELCOME), damaged])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.binary(max_size=60) | message(pb.WorkerCommand).map(lambda each: each.SerializeToString()))
)
def test_any_bytes_are_messages_or_end_the_stream(contents: list[bytes]) -> None:
    try:
        assert len(commands(contents)) == len(contents)
    except LinkClosed as closed:
        assert str(closed).isprintable()
