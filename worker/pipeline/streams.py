"""The streams of a link: one worker opens them, again and again as long as the row lives, the other accepts them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import grpc

from plane.streams.data_streams import write_message
from plane.streams.shared_memory_link import ClientTensorLink, ServerTensorLink, TensorLink
from services.errors import Refused
from services.printable import printable
from services.tensors.payload_last import Message
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.http2.client import open_stream
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed, raise_call_status, run_until_first_ends
from services.transport.security import Security
from worker.pipeline.connection import Connection
from worker.pipeline.link import Link
from worker.pipeline.messages import PieceReference, Received, decode
from worker.pipeline.shared_arrays import MemoryUnreadable

log = logging.getLogger("tiermesh.worker")

PASS_METHOD = "/tiermesh.Pipeline/Pass"


@dataclass(frozen=True)
class Sharing:
    """Whether and how arrays go through memory shared with a neighbour on this host.

    Attributes:
        enabled: whether they may.
        count: called with 1 when a link begins to share memory, and with -1 when that ends.
    """

    enabled: bool = True
    count: Callable[[int], None] = lambda change: None


SHARING = Sharing()
"""Sharing where nothing counts the links."""


class LinkStreams:
    """Streams of one link, one at a time.

    Args:
        link: the link.
        security: the worker's certificate, and the authorities whose certificates it trusts.
        sharing: whether and how arrays go through memory shared with a neighbour on this host.
        timeouts: `beat` is the interval between states, `silent` the longest silence of a stream, `deaf` that of a
            neighbour that is not lost, and the longest time that a message may take.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        link: Link,
        security: Security,
        sharing: Sharing,
        timeouts: Timeouts,
        clock: Callable[[], float],
    ) -> None:
        self.link = link
        self._security = security
        self._sharing = sharing
        self._timeouts = timeouts
        self._clock = clock
        self._heard_seconds = self._message_seconds = self._connected_seconds = clock()
        self._stream: Any = None  # the newest one
        self._received_bytes = 0  # on it, when `watch` last looked
        self._backoff = Backoff(max_seconds=timeouts.retry)
        self._opens = False

    async def watch(self) -> None:
        """Send signs of life, and notice a silent neighbour, until cancelled."""
        before = self._clock()
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self.link.tell_state()
            now = self._clock()
            pause = max(0.0, now - before - self._timeouts.beat)
            self._heard_seconds += pause  # of this process: it is no silence of the neighbour
            self._message_seconds += pause
            self._connected_seconds += pause
            before = now
            if self._has_received():
                self._heard_seconds = now
            if now - max(self._heard_seconds, self._connected_seconds) > self._timeouts.silent:
                self.link.disconnect()
            # Where the length of a message was damaged, all that follows passes for more of it.
            if now - max(self._message_seconds, self._connected_seconds) > self._timeouts.deaf:
                self.link.disconnect()
            # The end that opens streams knows why it can't: it is to be the first to report it.
            limit_seconds = self._timeouts.deaf + (0.0 if self._opens else 2 * self._timeouts.beat)
            self.link.note_silence(now - self._heard_seconds, limit_seconds)

    def _has_received(self) -> bool:
        """Return whether bytes have come on the stream since the last call. A slow link takes long for one message."""
        before, self._received_bytes = (
            self._received_bytes,
            self._stream.received_bytes if self._stream else 0,
        )
        return self._received_bytes > before

    async def keep_open(self) -> None:
        """Open streams to the neighbour, one after another, until cancelled."""
        link = self.link
        self._opens = True
        while True:
            try:
                await self._open()
                self._ended("the neighbour ended the stream")
            except grpc.aio.AioRpcError as error:
                self._ended(error.details() or error.code().name)
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    link.note_refusal(error.details() or "refused")
            except Refused as refused:
                self._ended(f"refused: {refused}")
            except LinkClosed as closed:
                self._ended(str(closed))
            await self._backoff.wait()

    async def _open(self) -> None:
        """Open a stream and exchange messages until it ends."""
        name = str(self.link.neighbour)
        offer = ClientTensorLink(name, enabled=self._sharing.enabled, count=self._sharing.count)
        with closing(offer):
            stream = await open_stream(
                self.link.neighbour.address,
                self._security,
                PASS_METHOD,
                offer.metadata,
                limit_seconds=self._timeouts.hello,
            )
            try:
                await self._run(stream, offer, None, self._confirm(stream, offer))
                await raise_call_status(stream)
            finally:
                stream.cancel()

    async def _confirm(self, stream: Any, offer: ClientTensorLink) -> None:
        await offer.confirm(stream)
        await asyncio.Event().wait()  # until the stream ends

    async def accept(self, context: Any, first: Received) -> None:
        """Accept a stream of the neighbour, and exchange messages until it ends.

        Args:
            context: the stream.
            first: the neighbour's first message.

        Raises:
            Refused: a message contradicts the job, the link, or what came before.
            LinkClosed: a newer stream has replaced this one, or the neighbour was silent.
        """
        answer = ServerTensorLink(
            str(self.link.neighbour),
            context.invocation_metadata(),
            enabled=self._sharing.enabled,
            count=self._sharing.count,
        )
        with closing(answer):
            await context.send_initial_metadata(answer.metadata)
            await self._run(context, answer, first)

    async def _run(
        self,
        stream: Any,
        tensor_link: TensorLink,
        first: Received | None,
        *others: Coroutine[Any, Any, None],
    ) -> None:
        """Exchange messages on a stream until it ends.

        Args:
            stream: the stream, of either end.
            tensor_link: whether the ends share memory.
            first: the neighbour's first message, if it was read.
            others: coroutines that run meanwhile.

        Raises:
            Refused: a message contradicts the job, the link, or what came before.
            LinkClosed: a newer stream has replaced this one, or the neighbour was silent.
            grpc.aio.AioRpcError: the stream broke.
        """
        self._connected_seconds = self._clock()
        self._stream, self._received_bytes = stream, 0
        connection = Connection(self.link, tensor_link)
        try:
            if first is not None:
                self._take(connection, first)
            await run_until_first_ends(
                self._receive(stream, connection),
                self._send(stream, connection),
                connection.wait_over(),
                *others,
            )
        except MemoryUnreadable:
            self._sharing = replace(self._sharing, enabled=False)  # the next stream has messages
            raise
        except Refused as refused:
            self.link.note_refusal(str(refused))
            raise
        finally:
            if not connection.is_over:
                self.link.disconnect()

    async def _receive(self, stream: Any, connection: Connection) -> None:
        while isinstance(message := await stream.read(), Message):
            self._take(connection, decode(message))

    async def _send(self, stream: Any, connection: Connection) -> None:
        while True:
            await write_message(stream, *await connection.next_message())

    def _take(self, connection: Connection, message: Received | PieceReference) -> None:
        was_heard = connection.is_heard
        connection.take(message)
        self._heard_seconds = self._message_seconds = self._clock()
        if not was_heard:
            self._backoff.reset()
            self.link.note_problem("")
            log.info("connected to %s", self.link)

    def _ended(self, reason: str) -> None:
        problem = printable(reason, 200)
        self.link.note_problem(problem)
        log.info("no stream with %s: %s", self.link, problem)


async def read_first(stream: Any) -> Received | PieceReference:
    """Return the first message of an accepted stream.

    Raises:
        Refused: it is damaged.
        LinkClosed: there is none.
    """
    try:
        message = await asyncio.wait_for(stream.read(), HELLO_SECONDS)
    except asyncio.TimeoutError:
        raise LinkClosed(f"no message within {HELLO_SECONDS:g} s") from None
    if not isinstance(message, Message):
        raise LinkClosed("the stream ended before its first message")
    return decode(message)
