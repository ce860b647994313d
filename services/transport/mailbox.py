"""The bounded queue of messages between the event loop's code and the stream that sends them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from services.transport.links import LinkClosed

MAILBOX_MESSAGES = 4096
"""Control messages that may wait for a peer to read; a peer that reads none for longer is disconnected."""

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """A queue of outgoing messages that closes when it is full.

    Args:
        max_messages: length at which the next message closes the queue.
    """

    def __init__(self, max_messages: int = MAILBOX_MESSAGES) -> None:
        self._max_messages = max_messages
        self._waiting: deque[Message] = deque()
        self._closed: LinkClosed | None = None
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()  # set by a message and by the close

    def put(self, message: Message) -> None:
        """Append a message, or close the mailbox if the peer has left too many unread."""
        if self._closed is not None:
            return
        if len(self._waiting) == self._max_messages:
            self.close(f"the peer left {self._max_messages} messages unread")
            return
        self._waiting.append(message)
        self._changed.set()

    def close(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """Accept no more messages; those that wait can still be taken.

        Args:
            reason: text of the LinkClosed that `take` raises afterwards. The first close's reason counts.
            code: status of that LinkClosed.
        """
        if self._closed is None:
            self._closed = LinkClosed(reason, code)
            self._closing.set()
            self._changed.set()

    async def wait_closed(self) -> None:
        """Wait for the close, then raise its reason: for a stream that ends with the mailbox's stream.

        Raises:
            LinkClosed: always.
        """
        await self._closing.wait()
        assert self._closed is not None
        raise self._closed

    async def take(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            LinkClosed: the mailbox is closed and empty.
        """
        while not self._waiting and self._closed is None:
            self._changed.clear()
            await self._changed.wait()
        if self._waiting:
            return self._waiting.popleft()
        assert self._closed is not None
        raise self._closed

    async def take_batch(
        self, max_messages: int, max_bytes: int = 0, measure: Callable[[Message], int] = lambda _: 0
    ) -> list[Message]:
        """Wait for a message, then return it with those behind it: from 1 to `max_messages`.

        Args:
            max_messages: largest number of messages.
            max_bytes: largest size of all but the first.
            measure: returns the size of a message in bytes.

        Raises:
            LinkClosed: the mailbox is closed and empty.
        """
        batch = [await self.take()]
        size = measure(batch[0])
        while self._waiting and len(batch) < max_messages:
            size += measure(self._waiting[0])
            if size > max_bytes > 0:
                break
            batch.append(self._waiting.popleft())
        return batch
