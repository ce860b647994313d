"""The streams of a link: one worker opens them, again and again as long as the row lives, the other accepts them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from services.errors import Refused
from services.printable import printable
from services.tensors.payload_last import Message
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.data.data_streams import write_message
from services.transport.http2.client import open_stream
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed, raise_call_status, run_until_first_ends
from services.transport.security import Security
from worker.pipeline.link import Connection, Link
from worker.pipeline.messages import Received, decode

log = logging.getLogger("tiermesh.worker")

PASS_METHOD = "/tiermesh.Pipeline/Pass"


class LinkStreams:
    """Streams of one link, one at a time.

    Args:
        link: the link.
        security: the worker's certificate, and the authorities whose certificates it trusts.
        timeouts: `beat` is the interval between states, `silent` the longest silence of a stream, `deaf` that of a
            neighbour that is not lost.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        link: Link,
        security: Security,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self._security = security
        self._timeouts = timeouts
        self._clock = clock
        self._heard_seconds = self._connected_seconds = clock()
        self._backoff = Backoff(max_seconds=timeouts.retry)

    async def watch(self) -> None:
        """Send signs of life, and notice a silent neighbour, until cancelled."""
        before = self._clock()
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self.link.tell_state()
            now = self._clock()
            pause = max(
                0.0, now - before - self._timeouts.beat
            )  # of this process: no silence of the neighbour
            self._heard_seconds += pause
            self._connected_seconds += pause
            before = now
            if now - max(self._heard_seconds, self._connected_seconds) > self._timeouts.silent:
                self.link.disconnect()
            self.link.note_silence(now - self._heard_seconds, self._timeouts.deaf)

    async def keep_open(self) -> None:
        """Open streams to the neighbour, one after another, until cancelled."""
        link = self.link
        while True:
            try:
                stream = await open_stream(
                    link.neighbour.address,
                    self._security,
                    PASS_METHOD,
                    (),
                    limit_seconds=self._timeouts.hello,
                )
                try:
                    await self.run(stream)
                    await raise_call_status(stream)
                finally:
                    stream.cancel()
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

    async def run(self, stream: Any, first: Received | None = None) -> None:
        """Exchange messages on a stream until it ends.

        Args:
            stream: the stream, of either end.
            first: the neighbour's first message, if it was read.

        Raises:
            Refused: a message contradicts the job, the link, or what came before.
            LinkClosed: a newer stream has replaced this one, or the neighbour was silent.
            grpc.aio.AioRpcError: the stream broke.
        """
        self._connected_seconds = self._clock()
        connection = self.link.connect()
        try:
            if first is not None:
                self._take(connection, first)
            await run_until_first_ends(
                self._receive(stream, connection), self._send(stream, connection), connection.wait_over()
            )
        except Refused as refused:
            self.link.note_refusal(str(refused))
            raise
        finally:
            if not connection.over.is_set():
                self.link.disconnect()

    async def _receive(self, stream: Any, connection: Connection) -> None:
        while isinstance(message := await stream.read(), Message):
            self._take(connection, decode(message))

    async def _send(self, stream: Any, connection: Connection) -> None:
        while True:
            await write_message(stream, *await connection.next_message())

    def _take(self, connection: Connection, message: Received) -> None:
        was_heard = connection.is_heard
        connection.take(message)
        self._heard_seconds = self._clock()
        if not was_heard:
            self._backoff.reset()
            self.link.note_problem("")
            log.info("connected to %s", self.link)

    def _ended(self, reason: str) -> None:
        problem = printable(reason, 200)
        self.link.note_problem(problem)
        log.info("no stream with %s: %s", self.link, problem)


async def read_first(stream: Any) -> Received:
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
