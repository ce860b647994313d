"""Control streams: whatever happens to a message on its way, it is read as it was sent, or it ends the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import cluster_pb2 as pb
from services.protocol.checksums import encode_with_checksum
from services.transport.control_streams import ControlReader, greet
from services.transport.streams import LinkClosed
from tests.support.anything import message

WELCOME = pb.WorkerCommand(epoch=3, welcome=pb.Welcome(name="a", heartbeat_seconds=5.0))
LEASE = pb.WorkerCommand(epoch=3, lease=pb.Lease(job="j", generation=1, step=4, lease=(3 << 32) + 1, count=4))


def commands(contents: Iterable[bytes]) -> list[pb.WorkerCommand]:
    """What a stream of these bytes says until it ends."""
    waiting = iter(contents)

    async def read() -> object:
        return next(waiting, grpc.aio.EOF)

    async def scenario() -> list[pb.WorkerCommand]:
        reader = ControlReader(read, pb.WorkerCommand, "Attend")
        found = []
        while (each := await reader.next()) is not None:
            found.append(each)
        return found

    return asyncio.run(scenario())


def test_messages_are_read_to_the_end() -> None:
    assert commands([encode_with_checksum(WELCOME), encode_with_checksum(LEASE)]) == [WELCOME, LEASE]
    assert commands([each.SerializeToString() for each in (WELCOME, LEASE)]) == [WELCOME, LEASE]


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (encode_with_checksum(LEASE)[:9], "of 9 bytes, was damaged: expected a WorkerCommand"),
        (encode_with_checksum(LEASE)[:-1] + b"\0", "was damaged: crc32c 0x"),
        (b"", "of 0 bytes, was damaged: expected a crc32c, as those before it had one"),
    ],
)
def test_a_broken_message_is_told_by_stream_number_and_reason(damaged: bytes, why: str) -> None:
    with pytest.raises(LinkClosed, match=f"Attend: message 2, .*{why}") as closed:
        commands([encode_with_checksum(WELCOME), damaged, encode_with_checksum(LEASE)])
    assert closed.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_no_flipped_bit_and_no_cut_passes_unseen() -> None:
    sent = encode_with_checksum(LEASE)
    flipped = [
        sent[: bit // 8] + bytes([sent[bit // 8] ^ 1 << bit % 8]) + sent[bit // 8 + 1 :]
        for bit in range(8 * len(sent))
    ]
    for damaged in (*flipped, *(sent[:length] for length in range(len(sent)))):
        with pytest.raises(LinkClosed, match="Attend: message 2"):
            commands([encode_with_checksum(WELCOME), damaged])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.binary(max_size=60) | message(pb.WorkerCommand).map(lambda each: each.SerializeToString()))
)
def test_any_bytes_are_messages_or_end_the_stream(contents: list[bytes]) -> None:
    try:
        assert len(commands(contents)) == len(contents)
    except LinkClosed as closed:
        assert str(closed).isprintable()


class Call:
    """A client's stream whose peer answers so."""

    def __init__(
        self, *answers: bytes, connects: bool = True, code: grpc.StatusCode = grpc.StatusCode.OK
    ) -> None:
        self.said: list[object] = []
        self._answers = iter(answers)
        self._connects = connects
        self._code = code

    async def write(self, said: object) -> None:
        if not self._connects:
            await asyncio.Event().wait()
        if self._code is not grpc.StatusCode.OK:
            raise asyncio.InvalidStateError  # as of a stream that has ended before
        self.said.append(said)

    async def read(self) -> object:
        return next(self._answers, grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "gone"

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata


def greeting(call: Call) -> pb.WorkerCommand:
    hello = pb.WorkerMessage(hello=pb.Hello(name="w"))
    answer = asyncio.run(greet(call, hello, ControlReader(call.read, pb.WorkerCommand, "Attend")))
    assert call.said == [hello]
    return answer


def test_hello_is_answered() -> None:
    assert greeting(Call(encode_with_checksum(WELCOME))) == WELCOME


def test_whoever_does_not_even_connect_is_waited_for_no_longer_than_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.transport.control_streams.HELLO_SECONDS", 0.05)
    with pytest.raises(asyncio.TimeoutError):
        greeting(Call(connects=False))


def test_a_stream_that_ends_without_an_answer_is_told_by_its_status() -> None:
    with pytest.raises(LinkClosed, match="it ended the stream"):
        greeting(Call())
    with pytest.raises(grpc.aio.AioRpcError, match="gone"):
        greeting(Call(code=grpc.StatusCode.UNAVAILABLE))
