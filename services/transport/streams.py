"""What both ends of a long-lived gRPC stream need: a bounded mailbox, and reading and writing side by side."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc

from services.errors import TiermeshError
from services.timeouts import STANDARD_TIMEOUTS, Timeouts

HELLO_SECONDS = STANDARD_TIMEOUTS.hello
"""Whoever connects must say hello within this time, and is answered within it."""
MAILBOX_LENGTH = 4096
"""Control messages that may wait for a peer to read; one that reads none for longer is cut off."""
INCARNATION_KEY = "tiermesh-incarnation"
"""gRPC metadata by which a data stream names the process that attends on the control stream."""
SESSION_KEY = "tiermesh-session"
"""gRPC metadata by which a worker's data stream to a shard names its connection, as its Welcome did."""

Message = TypeVar("Message")


class LinkClosed(TiermeshError):
    """A link is over; the text says why.

    Attributes:
        code: with which the server's side ends the peer's streams.
    """

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(reason)
        self.code = code


class Mailbox(Generic[Message]):
    """Messages on their way out of the event loop, in order; at most `length`."""

    def __init__(self, length: int = MAILBOX_LENGTH) -> None:
        self._length = length
        self._waiting: deque[Message] = deque()
        self._closed: LinkClosed | None = None
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()  # a message came, or the close

    def put(self, message: Message) -> None:
        """Append a message; closes the mailbox when the peer has stopped reading."""
        if self._closed is not None:
            return
        if len(self._waiting) == self._length:
            self.close(f"the peer left {self._length} messages unread")
            return
        self._waiting.append(message)
        self._changed.set()

    def close(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """After what waits already, `take` raises LinkClosed with this reason, the first one given."""
        if self._closed is None:
            self._closed = LinkClosed(reason, code)
            self._closing.set()
            self._changed.set()

    async def until_closed(self) -> None:
        """Wait for the close, then raise its LinkClosed: for a stream that ends with the mailbox's."""
        await self._closing.wait()
        assert self._closed is not None
        raise self._closed

    async def take(self) -> Message:
        """The next message.

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

    async def take_batch(self, most: int) -> list[Message]:
        """The next messages, one at least and `most` at most.

        Raises:
            LinkClosed: the mailbox is closed and empty.
        """
        first = await self.take()
        return [first, *(self._waiting.popleft() for _ in range(min(most - 1, len(self._waiting))))]


class Heartbeats:
    """Both ends of a control stream speak at least twice a heartbeat; who is silent for long is taken for dead.

    Args:
        timeouts: of this cluster: when to speak (`beat`), and what is long (`deaf`).
        beat: says to the other end that this one is there.
    """

    def __init__(self, timeouts: Timeouts, beat: Callable[[], None]) -> None:
        self._timeouts = timeouts
        self._beat = beat
        self._heard_seconds = time.monotonic()

    def heard(self) -> None:
        """The other end has spoken."""
        self._heard_seconds = time.monotonic()

    async def run(self) -> None:
        """Speak and listen, beside the stream.

        Raises:
            LinkClosed: the other end is silent.
        """
        while True:
            before = time.monotonic()
            await asyncio.sleep(self._timeouts.beat)
            self._beat()
            # What came while this process was paused itself has not been read yet.
            self._heard_seconds += max(0.0, time.monotonic() - before - self._timeouts.beat)
            silent = time.monotonic() - self._heard_seconds
            if silent > self._timeouts.deaf:
                raise LinkClosed(f"silent for {silent:.1f} s")


async def until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run side by side until one returns or raises; end the others; raise what it raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


LINK_ENDS = (grpc.aio.AioRpcError, asyncio.TimeoutError, LinkClosed)
"""How a link ends that is to be made anew."""


def why_ended(error: BaseException, awaited: str) -> str:
    """What to tell people of one of `LINK_ENDS`; `awaited` is the answer to Hello."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or str(error.code().name)
    if isinstance(error, asyncio.TimeoutError):
        return f"no {awaited} within {HELLO_SECONDS:g} s"
    return str(error)


class Backoff:
    """Waiting times between attempts: doubling up to a limit, each drawn from the upper half, so that peers of one
    process that died don't come back all at once, nor any of them without a pause."""

    def __init__(self, first_seconds: float = 0.2, most_seconds: float = STANDARD_TIMEOUTS.retry) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._next_seconds = first_seconds

    def limit(self, most_seconds: float) -> None:
        """Wait no longer than this from now on."""
        self._most_seconds = most_seconds

    def reset(self) -> None:
        """The last attempt went well."""
        self._next_seconds = self._first_seconds

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(self.next_seconds())

    def next_seconds(self) -> float:
        """How long to wait this time."""
        most = min(self._next_seconds, self._most_seconds)
        self._next_seconds = 2 * most
        return most * random.uniform(0.5, 1.0)


async def write(call: Any, message: Any) -> None:
    """Send a message on a client's stream.

    Raises:
        grpc.aio.AioRpcError: the stream ended badly.
        LinkClosed: it ended, well or before.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # gRPC's word for a stream that had ended before
        await raise_status(call)
        raise LinkClosed("it ended the stream") from None


async def raise_status(call: Any) -> None:
    """Raise how a client's stream ended (AioRpcError), unless it ended well."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
