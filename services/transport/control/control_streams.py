"""Control streams: messages with checksums and heartbeats, in both directions.

Streams get no deserializer from gRPC, because grpc.aio hides a message that can't be parsed. A client reads None, as
at the end of the stream, and waits for a status that never comes; a server's call ends with a traceback. Here every
message is read as bytes and checked, and a damaged one ends its stream with the reason.

`attend_client.py` and `attend_server.py` open control streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum
from services.protocol.plain_text import make_printable
from services.transport.control.heartbeats import Heartbeats
from services.transport.links import LinkClosed, run_until_first_ends

SentT = TypeVar("SentT", bound=Message)
ReceivedT = TypeVar("ReceivedT", bound=Message)


class ControlReader(Generic[ReceivedT]):
    """Reader of one control stream, which checks every message.

    A peer sends a checksum with all of its messages or with none. A message without one, after others that had one,
    is therefore what is left of a longer message.

    Args:
        read: the gRPC stream's `read`. It returns bytes, and anything else at the stream's end.
        message_type: type of the stream's messages; it has an `own_crc32c` field.
        stream: name of the stream's RPC method, for error texts.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Any]], message_type: type[ReceivedT], stream: str = "Attend"
    ) -> None:
        self._read = read
        self._message_type = message_type
        self._stream = stream
        self._count = 0
        self._has_checksums = False

    async def next(self) -> ReceivedT | None:
        """Return the next message, or None at the end of the stream.

        Raises:
            LinkClosed: the message was damaged, or a list is longer than its bound.
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
        make_printable(message)
        try:
            check_received(message)
        except MessageTooLarge as error:
            text = f"{self._stream}: message {self._count}: {error.fault}"
            raise LinkClosed(text, grpc.StatusCode.INVALID_ARGUMENT) from None
        return message

    def _damaged(self, content: bytes, reason: str) -> LinkClosed:
        return LinkClosed(
            f"{self._stream}: message {self._count}, of {len(content)} bytes, was damaged: {reason}",
            grpc.StatusCode.INVALID_ARGUMENT,
        )


class ControlStream(Generic[SentT, ReceivedT]):
    """One end of a control stream whose Hello was accepted.

    Args:
        reader: reader of the peer's messages.
        write: sends one message.
        raise_status: called when the peer has ended the stream; raises the stream's status unless that is OK.

    Attributes:
        end_reason: reason why the stream ended, for people; set when `run` returns or raises.
    """

    def __init__(
        self,
        reader: ControlReader[ReceivedT],
        write: Callable[[SentT], Awaitable[None]],
        raise_status: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._reader = reader
        self._write = write
        self._raise_status = raise_status
        self.end_reason = "its control stream ended"

    async def run(
        self,
        take: Callable[[], Awaitable[SentT]],
        received: Callable[[ReceivedT], None],
        *others: Coroutine[Any, Any, None],
        heartbeats: Heartbeats | None = None,
    ) -> None:
        """Send and receive until the stream ends.

        Args:
            take: waits for the next message to send and returns it.
            received: called with each message.
            others: coroutines that run meanwhile; the stream ends with the first of them.
            heartbeats: sends heartbeats and notices a silent peer; None if others do.

        Raises:
            LinkClosed: this end has closed the stream, or the peer is silent or has sent a damaged message.
            grpc.aio.AioRpcError: the stream ended with another status than OK.
        """
        beating = (heartbeats.run(),) if heartbeats is not None else ()
        try:
            await run_until_first_ends(
                self._receive(received, heartbeats), self._send(take), *beating, *others
            )
        except LinkClosed as closed:
            self.end_reason = str(closed)
            raise

    async def _receive(self, received: Callable[[ReceivedT], None], heartbeats: Heartbeats | None) -> None:
        while (message := await self._reader.next()) is not None:
            if heartbeats is not None:
                heartbeats.message_received()
            received(message)
        if self._raise_status is not None:
            await self._raise_status()

    async def _send(self, take: Callable[[], Awaitable[SentT]]) -> None:
        while True:
            await self._write(await take())
