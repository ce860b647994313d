"""A control stream returns each message as it was sent, or ends with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import cluster_pb2 as pb
from services.protocol.checksums import encode_with_checksum
from services.transport.control.attend_client import send_hello
from services.transport.control.control_streams import ControlReader
from services.transport.links import LinkClosed
from tests.support.anything import message

WELCOME = pb.WorkerCommand(epoch=3, welcome=pb.Welcome(name="a", heartbeat_seconds=5.0))
LEASE = pb.WorkerCommand(epoch=3, lease=pb.Lease(job="j", generation=1, step=4, lease=(3 << 32) + 1, count=4))


def commands(contents: Iterable[bytes]) -> list[pb.WorkerCommand]:
    """Return the messages of a stream with these contents."""
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
    ("damaged", "facts"),
    [
        (encode_with_checksum(LEASE)[:9], "9 bytes.* WorkerCommand"),
        (encode_with_checksum(LEASE)[:-1] + b"\0", "crc32c 0x"),
        (b"", "0 bytes.* crc32c"),
    ],
)
def test_the_error_of_a_damaged_message_names_stream_number_and_reason(damaged: bytes, facts: str) -> None:
    with pytest.raises(LinkClosed, match=f"Attend: message 2, .*{facts}") as closed:
        commands([encode_with_checksum(WELCOME), damaged, encode_with_checksum(LEASE)])
    assert closed.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_every_flipped_bit_and_every_cut_is_found() -> None:
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
    """A client's stream with prepared answers."""

    def __init__(
        self, *answers: bytes, connects: bool = True, code: grpc.StatusCode = grpc.StatusCode.OK
    ) -> None:
        self.written: list[object] = []
        self._answers = iter(answers)
        self._connects = connects
        self._code = code

    async def write(self, message: object) -> None:
        if not self._connects:
            await asyncio.Event().wait()
        if self._code is not grpc.StatusCode.OK:
            raise asyncio.InvalidStateError  # as grpc.aio does if the stream has ended
        self.written.append(message)

    async def read(self) -> object:
        return next(self._answers, grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "gone"

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata


def say_hello(call: Call, limit_seconds: float = 20.0) -> pb.WorkerCommand:
    hello = pb.WorkerMessage(hello=pb.Hello(name="w"))
    reader = ControlReader(call.read, pb.WorkerCommand, "Attend")
    answer = asyncio.run(send_hello(call, hello, reader, limit_seconds))
    assert call.written == [hello]
    return answer


def test_hello_is_answered() -> None:
    assert say_hello(Call(encode_with_checksum(WELCOME))) == WELCOME


def test_the_limit_of_hello_covers_connecting() -> None:
    with pytest.raises(asyncio.TimeoutError):
        say_hello(Call(connects=False), limit_seconds=0.05)


def test_a_stream_that_ends_before_the_answer_raises_its_status() -> None:
    with pytest.raises(LinkClosed, match="the peer ended the stream"):
        say_hello(Call())
    with pytest.raises(grpc.aio.AioRpcError, match="gone"):
        say_hello(Call(code=grpc.StatusCode.UNAVAILABLE))
