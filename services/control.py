"""Messages of control streams: each is read as bytes and held against its checksum; one that is broken ends its stream.

gRPC is given no deserializer. Its own would hide what is broken: a client is handed None, as if the stream had ended,
and waits for a status that never comes; a server's call ends with a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from services.checksums import Damaged, decode
from services.streams import LinkClosed

Kind = TypeVar("Kind", bound=Message)


class Reader(Generic[Kind]):
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
            message, checked = decode(self._kind, content)
        except Damaged as damaged:
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
