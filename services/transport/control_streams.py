"""Messages of control streams: each is read as bytes and held against its checksum; one that is broken ends its stream.

gRPC is given no deserializer. Its own would hide what is broken: a client is handed None, as if the stream had ended,
and waits for a status that never comes; a server's call ends with a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from protos.cluster_pb2 import Hello
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum
from services.transport.streams import HELLO_SECONDS, LinkClosed, raise_status, write

Kind = TypeVar("Kind", bound=Message)


class ControlReader(Generic[Kind]):
    """Reads a control stream.

    A peer whose messages have checksums has them in all: one without is what is left of a longer one.

    Args:
        read: of the gRPC stream; gives bytes, and anything else at its end.
        kind: of the messages, which have an `own_crc32c`.
        stream: its method, for people.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], kind: type[Kind], stream: str) -> None:
        self._read = read
        self._kind = kind
        self._stream = stream
        self._count = 0
        self._checked = False

    async def next(self) -> Kind | None:
        """The next message; None: the stream has ended.

        Raises:
            LinkClosed: it is not what was sent.
        """
        content = await self._read()
        if not isinstance(content, bytes):
            return None
        self._count += 1
        try:
            message, checked = decode_with_checksum(self._kind, content)
        except ChecksumMismatch as damaged:
            raise self._broken(content, str(damaged)) from None
        if self._checked and not checked:
            raise self._broken(content, "expected a crc32c, as those before it had one")
        self._checked = checked
        return message

    def _broken(self, content: bytes, why: str) -> LinkClosed:
        return LinkClosed(
            f"{self._stream}: message {self._count}, of {len(content)} bytes, was damaged: {why}",
            grpc.StatusCode.INVALID_ARGUMENT,
        )


async def greet(call: Any, hello: Message, answers: ControlReader[Kind]) -> Kind:
    """Say hello, a client's first message; what is answered.

    Connecting, too, is waited for no longer than `HELLO_SECONDS`: a peer that is frozen takes connections, and says
    nothing, for which gRPC itself waits 20 s.

    Raises:
        asyncio.TimeoutError: there is no answer.
        grpc.aio.AioRpcError: the stream ended badly.
        LinkClosed: it ended, well or before; or the answer is not what was sent.
    """
    answer = await asyncio.wait_for(_answer(call, hello, answers), HELLO_SECONDS)
    if answer is None:
        await raise_status(call)
        raise LinkClosed("it ended the stream")
    return answer


async def _answer(call: Any, hello: Message, answers: ControlReader[Kind]) -> Kind | None:
    await write(call, hello)
    return await answers.next()


async def greeted(
    context: grpc.aio.ServicerContext[Any, Any],
    messages: ControlReader[Kind],
    unwrap: Callable[[Kind], Any],
    limit_seconds: float = HELLO_SECONDS,
) -> Hello:
    """The Hello that a caller begins with; the call is aborted if there is none.

    Args:
        context: of the call.
        messages: of it.
        unwrap: gives what the first of them says.
        limit_seconds: in which it must come.
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
