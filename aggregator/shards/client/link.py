"""An aggregator's connection to one shard: orders and reports on one TCP connection, checkpoints on another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aggregator.core.succession import Deposed
from aggregator.shards.messages import SequenceFilter, opened, order
from aggregator.shards.server.service import BATCH_MESSAGES
from aggregator.shards.server.session import MESSAGES
from optimizer.tensor_store import TensorStoreLost
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from services.errors import Failed, Refused
from services.protocol.checksums import encode_with_checksum
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.control_streams import ControlReader, send_hello
from services.transport.links import (
    INCARNATION_KEY,
    LINK_ERRORS,
    LinkClosed,
    describe_link_error,
    raise_call_status,
    run_until_first_ends,
    write_to_call,
)
from services.transport.mailbox import Mailbox
from services.transport.security import Security
from services.transport.server import open_channel

log = logging.getLogger("tiermesh.aggregator")

Done = TypeVar("Done")
_PIECE_TAKEN = "its word that a piece of a checkpoint has been taken"


class ShardLink:
    """One shard, kept up.

    Args:
        address: `HOST:PORT` of the shard.
        stripe: which chunks are its.
        security: certificates to show and to believe.
        name: of this aggregator.
        incarnation: of this process.
        epoch: of this aggregator.
        timeouts: `retry` is the longest pause between two attempts to connect, `stall` what a shard may take for
            something.
        came: told when the link is up.
        went: told when it is down again, after `came`; with why.
        failed: told when it could not be made for another reason than before.
        reported: takes each report.

    Attributes:
        name: of the shard, once it said so.
        tensor_port: where it serves data streams, as it said.
        why_down: why the link is not up; empty while it is.
        heard_seconds: when the shard last spoke, by the event loop's clock.
    """

    def __init__(
        self,
        address: str,
        stripe: Stripe,
        *,
        security: Security,
        name: str,
        incarnation: str,
        epoch: int,
        timeouts: Timeouts,
        came: Callable[[ShardLink], None],
        went: Callable[[ShardLink, str], None],
        failed: Callable[[], None],
        reported: Callable[[ShardLink, Message], None],
    ) -> None:
        self.address = address
        self.stripe = stripe
        self.name = ""
        self.tensor_port = 0
        self.why_down = "not connected yet"
        self.heard_seconds = 0.0
        self._security = security
        self._epoch = epoch
        self._timeouts = timeouts
        self._metadata = ((INCARNATION_KEY, incarnation),)
        self._hello = cluster.Hello(
            protocol=PROTOCOL_VERSION,
            role="aggregator",
            name=name,
            incarnation=incarnation,
            epoch_seen=epoch,
            shard_index=stripe.index,
            shard_count=stripe.count,
        )
        self._came, self._went, self._failed, self._reported = came, went, failed, reported
        self._orders: Mailbox[pb.ShardOrder] = Mailbox(MESSAGES)
        self._tensors: grpc.aio.Channel | None = None  # while the link is up
        self._deadline: asyncio.TimerHandle | None = None  # of what the shard does for a step

    def __str__(self) -> str:
        return f"shard {self.stripe.index} of {self.stripe.count} ({self.address})"

    @property
    def up(self) -> bool:
        """Whether orders reach the shard."""
        return self._tensors is not None

    def order(self, body: Message) -> None:
        """Send an order; dropped while the link is down: the shard holds nothing then."""
        if self.up:
            self._orders.put(order(body))

    def close(self, reason: str) -> None:
        """End the connection; it is made anew."""
        if self.up:
            self._tensors, self.why_down = None, reason
            self._orders.close(reason)
            if self._deadline is not None:
                self._deadline.cancel()
            self._went(self, reason)

    async def keep_up(self) -> None:
        """Connect, again and again, until cancelled.

        Raises:
            Deposed: the shard obeys a newer aggregator.
        """
        backoff = Backoff(max_seconds=self._timeouts.retry)
        said = ""
        while True:
            try:
                await self._attend(backoff)
                reason = "it ended the stream"
            except LINK_ERRORS as error:
                reason = describe_link_error(error, "Hello")
                code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
                if code is grpc.StatusCode.ABORTED:
                    raise Deposed(f"{self}: {reason}") from None
                if code is grpc.StatusCode.UNIMPLEMENTED:
                    reason = "it is no shard; start it with `tiermesh aggregator --shard`"
            self.close(reason)
            self.why_down = reason
            if reason != said:
                log.warning("%s: %s; trying again", self, reason)
                said = reason
                self._failed()
            await backoff.wait()

    async def _attend(self, backoff: Backoff) -> None:
        control = open_channel(self.address, self._security, own_connection=True)
        tensors = open_channel(self.address, self._security, own_connection=True)
        async with control, tensors:
            attend = control.stream_stream(
                "/tiermesh.Shard/Attend",
                request_serializer=encode_with_checksum,
            )()
            reports = ControlReader(attend.read, pb.ShardReports, "Attend")
            hello = pb.ShardOrders(epoch=self._epoch, orders=[order(self._hello)])
            answer = await send_hello(attend, hello, reports)
            first = opened(answer.reports[0]) if answer.reports else None
            if not isinstance(first, cluster.Hello):
                raise LinkClosed("its first message is no Hello")
            self._orders = Mailbox(MESSAGES)
            self._tensors, self.name, self.why_down = tensors, first.name, ""
            self.tensor_port = first.tensor_port
            self.heard_seconds = asyncio.get_running_loop().time()
            backoff.reset()
            log.info("%s is %s", self, first.name)
            self._came(self)
            await run_until_first_ends(self._take_reports(attend, reports, answer.number), self._say(attend))

    async def _take_reports(self, attend: Any, reports: ControlReader[pb.ShardReports], last: int) -> None:
        in_order = SequenceFilter(last)
        loop = asyncio.get_running_loop()
        while (batch := await reports.next()) is not None:
            self.heard_seconds = loop.time()
            if not in_order.is_new(batch.number):
                continue
            for sealed in batch.reports:
                body = opened(sealed)
                if body is not None:
                    self._reported(self, body)
        await raise_call_status(attend)

    async def _say(self, attend: Any) -> None:
        number = 0
        while True:
            orders = await self._orders.take_batch(BATCH_MESSAGES)
            number += 1
            await write_to_call(attend, pb.ShardOrders(epoch=self._epoch, orders=orders, number=number))

    async def within(self, awaited: Awaitable[Done], what: str) -> Done:
        """Wait for what the shard does with its tensors; it may speak all the while, and yet never come to it.

        Raises:
            TensorStoreLost: it took longer than the `stall` rung; the link ends with that.
        """
        try:
            return await asyncio.wait_for(awaited, self._timeouts.stall)
        except asyncio.TimeoutError:
            raise self._lost(self._late(what)) from None

    def expect(self, what: str, is_owed: Callable[[], bool]) -> None:
        """End the link if something that the shard does for a step is still owed after the `stall` rung.

        One thing at a time: what was expected before it has come, or is of no use any more.
        """
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeouts.stall, self._end_if_owed, what, is_owed)

    def _end_if_owed(self, what: str, is_owed: Callable[[], bool]) -> None:
        if is_owed():
            self.close(self._late(what))

    def _late(self, what: str) -> str:
        return f"{what} did not come within {self._timeouts.stall:g} s"

    def _lost(self, reason: str) -> TensorStoreLost:
        """All of a job's tensors hang on this link: let it end."""
        self.close(reason)
        return TensorStoreLost(f"{self}: {reason}")

    # ---- checkpoints ----

    async def read_part(self, copy: int) -> AsyncIterator[pb.ArrayPiece]:
        """The pieces of a copy that CopyPart asked for.

        Raises:
            Failed: the shard has no memory for it; its tensors are as they were.
            TensorStoreLost: the link went down.
        """
        call = self._channel().unary_stream(
            "/tiermesh.Shard/ReadPart",
            request_serializer=encode_with_checksum,
        )(pb.ReadPartRequest(copy=copy), metadata=self._metadata)
        channel = self._tensors
        try:
            while isinstance(
                content := await self.within(call.read(), f"the next piece of copy {copy} of its tensors"),
                bytes,
            ):
                yield pb.ArrayPiece.FromString(content)
        except (grpc.aio.AioRpcError, asyncio.CancelledError, DecodeError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise Failed(f"{self}: {error.details()}") from None
            self._gone(error, channel)
            raise
        await raise_call_status(call)

    async def write_part(self, pieces: Iterable[pb.ArrayPiece]) -> None:
        """Give the shard what a checkpoint holds of its chunks.

        Raises:
            Refused: it is not of this job's optimizer.
            TensorStoreLost: the link went down.
        """
        call = self._channel().stream_unary(
            "/tiermesh.Shard/WritePart",
            request_serializer=pb.ArrayPiece.SerializeToString,
            response_deserializer=pb.PartWritten.FromString,
        )(metadata=self._metadata)
        channel = self._tensors
        try:
            for piece in pieces:
                await self.within(call.write(piece), _PIECE_TAKEN)
            await call.done_writing()
            await self.within(call, _PIECE_TAKEN)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if call.done() and not call.cancelled() and await call.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise Refused(await call.details()) from None
            self._gone(error, channel)
            raise

    def _channel(self) -> grpc.aio.Channel:
        if self._tensors is None:
            raise TensorStoreLost(f"{self}: {self.why_down}")
        return self._tensors

    def _gone(self, error: BaseException, channel: grpc.aio.Channel | None) -> None:
        """Say why a stream ended on which all of a job's tensors hang, and let the link end with it."""
        if self._tensors is not channel:
            raise TensorStoreLost(f"{self}: {self.why_down}") from None
        if isinstance(error, grpc.aio.AioRpcError | DecodeError):
            said = (
                "a message was damaged"
                if isinstance(error, DecodeError)
                else error.details() or error.code().name
            )
            raise self._lost(f"the stream of a checkpoint ended: {said}") from None
