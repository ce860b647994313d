"""Control streams: messages with checksums, and the Hello that opens each stream.

Streams get no deserializer from gRPC, because grpc.aio hides a message that can't be parsed. A client reads None, as
at the end of the stream, and waits for a status that never comes; a server's call ends with a traceback. Here every
message is read as bytes and checked, and a damaged one ends its stream with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from protos.cluster_pb2 import Hello
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed, raise_call_status, write_to_call

MessageT = TypeVar("MessageT", bound=Message)


class ControlReader(Generic[MessageT]):
    """Reader of one control stream, which checks every message.

    A peer sends a checksum with all of its messages or with none. A message without one, after others that had one,
    is therefore what is left of a longer message.

    Args:
        read: the gRPC stream's `read`. It returns bytes, and anything else at the stream's end.
        message_type: type of the stream's messages; it has an `own_crc32c` field.
        stream: name of the stream's RPC method, for error texts.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], message_type: type[MessageT], stream: str) -> None:
        self._read = read
        self._message_type = message_type
        self._stream = stream
        self._count = 0
        self._has_checksums = False

    async def next(self) -> MessageT | None:
        """Return the next message, or None at the end of the stream.

        Raises:
            LinkClosed: the message was damaged.
        """
        content = await self._read()
        if not isinstance(content, bytes):
            return None
        self._count += 1
        try:
            message, has_checksum = decode_with_checksum(self._message_type, content)
        except ChecksumMismatch as damaged:
            raise self._damaged(content, str(damaged)) from None
        if self._has_checksums and not has_checksum:
            raise self._damaged(content, "expected a crc32c, as the messages before it had one")
        self._has_checksums = has_checksum
        return message

    def _damaged(self, content: bytes, reason: str) -> LinkClosed:
        return LinkClosed(
            f"{self._stream}: message {self._count}, of {len(content)} bytes, was damaged: {reason}",
            grpc.StatusCode.INVALID_ARGUMENT,
        )


async def send_hello(
    call: Any, hello: Message, answers: ControlReader[MessageT], limit_seconds: float = HELLO_SECONDS
) -> MessageT:
    """Send Hello as the first message of a client's stream, and return the server's answer.

    The limit covers connecting, too: a frozen peer still accepts connections, and gRPC itself would wait 20 s for its
    first byte.

    Args:
        call: the stream.
        hello: the message.
        answers: reader of the stream.
        limit_seconds: longest wait for the answer.

    Raises:
        asyncio.TimeoutError: there was no answer in time.
        grpc.aio.AioRpcError: the stream ended with another status than OK.
        LinkClosed: the stream ended with OK, or the answer was damaged.
    """

    async def write_and_read() -> MessageT | None:
        await write_to_call(call, hello)
        return await answers.next()

    answer = await asyncio.wait_for(write_and_read(), limit_seconds)
    if answer is None:
        await raise_call_status(call)
        raise LinkClosed("the peer ended the stream")
    return answer


async def receive_hello(
    context: grpc.aio.ServicerContext[Any, Any],
    messages: ControlReader[MessageT],
    unwrap: Callable[[MessageT], Any],
    limit_seconds: float = HELLO_SECONDS,
) -> Hello:
    """Return the Hello that a client's stream starts with, or abort the call if there is none.

    Args:
        context: the call.
        messages: reader of its stream.
        unwrap: returns the content of a message's oneof.
        limit_seconds: longest wait for the message.
    """
    first = None
    try:
        first = await asyncio.wait_for(messages.next(), limit_seconds)
    except asyncio.TimeoutError:
        pass
    except LinkClosed as closed:
        await context.abort(closed.code, str(closed))
    hello = unwrap(first) if first is not None else None
    if not isinstance(hello, Hello):
        text = f"the first message must be Hello, within {limit_seconds:g} s"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        raise AssertionError("abort raises")
    return hello
