"""An aggregator's link to one shard: orders and reports on one TCP connection, checkpoints on another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aggregator.epoch_check import check_epoch
from plane.errors import PlaneLost
from plane.gathered_tensors import GatheredTensors, checkpoint_pieces
from plane.link import PlaneLinks
from plane.link_check.measure import LinkPeer
from plane.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_QUEUED_MESSAGES,
    SequenceFilter,
    unwrap,
    wrap_order,
)
from plane.plane import Plane
from protos import cluster_pb2
from protos import plane_pb2 as pb
from protos.jobs_pb2 import ShardStatus
from services.checkpoints.format import Checkpoint
from services.errors import Failed, Refusal, Refused
from services.files.transfer import FilesInMemory, upload
from services.protocol.checksums import encode_with_checksum
from services.protocol.file_refs import make_ref
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.control.attend_client import AttendMethod, LinkEnd, OpenLink, keep_attending
from services.transport.links import INCARNATION_KEY, raise_call_status
from services.transport.mailbox import Mailbox
from services.transport.obstacles import SHARD
from services.transport.security import Security
from services.transport.server import open_channel

log = logging.getLogger("tiermesh.aggregator")

Result = TypeVar("Result")


def _unwrap_first(reports: pb.PlaneReports) -> Message | None:
    return unwrap(reports.reports[0]) if reports.reports else None


_Link: TypeAlias = OpenLink[pb.PlaneOrders, pb.PlaneReports, cluster_pb2.Hello]
_ATTEND = AttendMethod(
    "/tiermesh.Shard/Attend",
    pb.PlaneReports,
    _unwrap_first,
    cluster_pb2.Hello,
    SHARD,
)


class ShardLink:
    """Link to one shard, opened again whenever it breaks.

    Args:
        address: `HOST:PORT` of the shard.
        stripe: chunks of the shard.
        security: this process's certificates, and those that it trusts.
        name: name of this aggregator.
        incarnation: incarnation of this process.
        epoch: epoch of this aggregator.
        cluster: identity of its cluster.
        timeouts: `retry` bounds the pause between two attempts to connect, `stall` the wait for the shard's work,
            `deaf` its silence.
        on_killed: called with the link and the fault if one has killed the shard's last process, which was attended.

    Attributes:
        name: name of the shard; empty before its first Hello.
        tensor_port: port of the shard's data streams; 0 if they use the port of `address`.
        down_reason: reason why the link is down; empty while it is up.
        last_heard_seconds: time of the shard's last message, by the event loop's clock.
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
        cluster: str,
        timeouts: Timeouts,
        on_killed: Callable[[ShardLink, cluster_pb2.Predecessor], None] = lambda link, killed: None,
    ) -> None:
        self.local: Plane | None = None
        self.address = address
        self.stripe = stripe
        self.name = ""
        self._incarnation = ""  # of the shard's process that was attended last
        self.tensor_port = 0
        self.down_reason = "not connected yet"
        self.last_heard_seconds = 0.0
        self._security = security
        self._epoch = epoch
        self._timeouts = timeouts
        self._metadata = ((INCARNATION_KEY, incarnation),)
        self._backoff = Backoff(max_seconds=timeouts.retry)
        self._hello = make_hello(
            Role.AGGREGATOR,
            name,
            incarnation=incarnation,
            epoch_seen=epoch,
            cluster=cluster,
            shard_index=stripe.index,
            shard_count=stripe.count,
        )
        self._on_killed = on_killed
        self._links: PlaneLinks
        self._orders: Mailbox[pb.PlaneOrder] = Mailbox(MAX_QUEUED_MESSAGES)
        self._checkpoint_channel: grpc.aio.Channel | None = None  # None: the link is down
        self._deadline: asyncio.TimerHandle | None = None  # of the shard's work for a step

    def __str__(self) -> str:
        return f"shard {self.stripe.index} of {self.stripe.count} ({self.address})"

    def describe(self, reason: str) -> str:
        """Return what the shard says, with its name."""
        return f"{self}: {reason}"

    @property
    def is_up(self) -> bool:
        """Whether orders reach the shard."""
        return self._checkpoint_channel is not None

    def status(self) -> ShardStatus:
        """Return the shard's status, for people."""
        silent_seconds = asyncio.get_running_loop().time() - self.last_heard_seconds
        return ShardStatus(
            index=self.stripe.index,
            address=self.address,
            name=self.name,
            detail=self.down_reason,
            seconds_since_heard=silent_seconds if self.is_up else 0.0,
        )

    def join(self, links: PlaneLinks) -> None:
        """Take the group that this link is in."""
        self._links = links

    def beat(self) -> None:
        """Send a heartbeat, and end the link of a shard that has been silent for too long."""
        self.send_order(cluster_pb2.Heartbeat())
        silent_seconds = asyncio.get_running_loop().time() - self.last_heard_seconds
        if self.is_up and silent_seconds > self._timeouts.deaf:
            self.close(f"silent for {silent_seconds:.1f} s")

    def peer(self) -> LinkPeer:
        """Return the shard as the other end of this link.

        Raises:
            Failed: the shard is not connected.
        """
        if not self.is_up:
            raise Failed(f"{self}: {self.down_reason}; start it, and look at its log")
        return LinkPeer(f"{self}", self.address, self.tensor_port, self._metadata)

    def send_order(self, body: Message) -> None:
        """Queue an order; drop it while the link is down, since the shard has no tensors then."""
        if self.is_up:
            self._orders.put(wrap_order(body))

    def close(self, reason: str) -> None:
        """End the connection; `run` opens another one."""
        if self.is_up:
            self._checkpoint_channel, self.down_reason = None, reason
            self._orders.close(reason)
            if self._deadline is not None:
                self._deadline.cancel()
            self._links.link_down(self, reason)

    async def run(self) -> None:
        """Keep the link up until cancelled.

        Raises:
            EpochBehind: the shard has obeyed a newer epoch, whose aggregator is gone.
        """
        await keep_attending(self, _ATTEND, self._security, self._backoff)

    # ---- as an `Attendant` ----

    def begin(self) -> pb.PlaneOrders:
        """Return the first message."""
        return pb.PlaneOrders(epoch=self._epoch, orders=[wrap_order(self._hello)])

    def check_answer(self, link: _Link) -> Refusal | None:
        """Return why the shard's Hello is not accepted."""
        expected = HelloExpectations(
            "aggregator",
            Role.AGGREGATOR,
            shard=(self.stripe.index, self.stripe.count),
            cluster=self._hello.cluster,
        )
        return check_hello(link.answer, expected)

    async def attend(self, link: _Link) -> None:
        """Exchange orders and reports until the link ends."""
        hello = link.answer
        async with open_channel(self.address, self._security, own_connection=True) as tensors:
            self._orders = Mailbox(MAX_QUEUED_MESSAGES)
            self._checkpoint_channel, self.name, self.down_reason = tensors, hello.name, ""
            self.tensor_port = hello.tensor_port
            last, self._incarnation = self._incarnation, hello.incarnation
            known = last != "" and hello.incarnation != last == hello.predecessor.incarnation
            if known:
                self._on_killed(self, hello.predecessor)
            self.last_heard_seconds = asyncio.get_running_loop().time()
            self._backoff.reset()
            log.info("%s: connected to %s", self, hello.name)
            self._links.link_up(self)
            take_reports = partial(self._take_reports, SequenceFilter(link.message.number))
            await link.stream.run(partial(self._next_orders, count(1)), take_reports)

    def ended(self, end: LinkEnd) -> bool:
        """Close the link after its stream has ended."""
        check_epoch(self, end)
        self.close(end.reason)
        self.down_reason = end.reason
        if end.is_news:
            self._links.report_waiting()
        return True

    def _take_reports(self, in_order: SequenceFilter, batch: pb.PlaneReports) -> None:
        self.last_heard_seconds = asyncio.get_running_loop().time()
        if not in_order.is_new(batch.number):
            return
        for envelope in batch.reports:
            body = unwrap(envelope)
            if body is not None:
                self._links.take_report(self, body)

    async def _next_orders(self, numbers: Iterator[int]) -> pb.PlaneOrders:
        orders = await self._orders.take_batch(MAX_BATCH_MESSAGES, MAX_BATCH_BYTES, pb.PlaneOrder.ByteSize)
        return pb.PlaneOrders(epoch=self._epoch, orders=orders, number=next(numbers))

    # ---- waits ----

    async def wait_for(self, awaited: Awaitable[Result], what: str) -> Result:
        """Wait for the shard's work on its tensors, at most as long as the `stall` timeout.

        A shard whose kernel thread hangs still answers heartbeats.

        Args:
            awaited: result of the work.
            what: name of the work for the error text.

        Raises:
            PlaneLost: the time is over; the link ends too.
        """
        try:
            return await asyncio.wait_for(awaited, self._timeouts.stall)
        except asyncio.TimeoutError:
            raise self._close_lost(self._describe_late(what)) from None

    def expect(self, what: str, is_pending: Callable[[], bool]) -> None:
        """End the link if the shard's work for a step is still pending after the `stall` timeout.

        One expectation at a time: a new one replaces the former.

        Args:
            what: name of the work for the error text.
            is_pending: returns whether the work is still awaited.
        """
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeouts.stall, self._end_if_pending, what, is_pending)

    def _end_if_pending(self, what: str, is_pending: Callable[[], bool]) -> None:
        if is_pending():
            self.close(self._describe_late(what))

    def _describe_late(self, what: str) -> str:
        return f"{what} did not come within {self._timeouts.stall:g} s"

    def _close_lost(self, reason: str) -> PlaneLost:
        """End the link, since a job needs the tensors of all shards, and return the error to raise."""
        self.close(reason)
        return PlaneLost(f"{self}: {reason}")

    # ---- files ----

    async def send_layout(self, layout: Layout, text: bytes) -> None:
        """Send the shard a layout as a file, unless it has it.

        Raises:
            Failed: the shard can't store it.
            PlaneLost: the link went down.
        """
        channel = self._require_channel()
        ref = make_ref(text)
        try:
            await self.wait_for(
                upload(channel, FilesInMemory({ref.sha256: text}), [ref], str(self)),
                "the answer to the job's layout",
            )
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:  # the channel was closed
            self._raise_lost(error, channel)
            raise
        if self._checkpoint_channel is not channel:
            raise PlaneLost(f"{self}: {self.down_reason}")

    # ---- checkpoints ----

    async def gather(self, copy: int, into: GatheredTensors) -> None:
        """Read the shard's chunks of a copy (Failed, PlaneLost)."""
        async for piece in self.read_copy(copy):
            await asyncio.to_thread(into.add, self.stripe, piece)

    async def restore(self, checkpoint: Checkpoint, opening: int) -> None:
        """Send the shard its chunks of a checkpoint (Refused, PlaneLost)."""
        await self.write_pieces(checkpoint_pieces(checkpoint, self.stripe, opening))

    async def read_copy(self, copy: int) -> AsyncIterator[pb.ArrayPiece]:
        """Yield the pieces of a copy that CopyPart ordered.

        Raises:
            Failed: the shard had not enough memory for the copy; its tensors are unchanged.
            PlaneLost: the link went down.
        """
        call = self._require_channel().unary_stream(
            "/tiermesh.Shard/ReadPart",
            request_serializer=encode_with_checksum,
        )(pb.ReadPartRequest(copy=copy), metadata=self._metadata)
        channel = self._checkpoint_channel
        try:
            while isinstance(
                content := await self.wait_for(call.read(), f"the next piece of copy {copy} of its tensors"),
                bytes,
            ):
                yield pb.ArrayPiece.FromString(content)
        except (grpc.aio.AioRpcError, asyncio.CancelledError, DecodeError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise Failed(f"{self}: {error.details()}") from None
            self._raise_lost(error, channel)
            raise
        await raise_call_status(call)

    async def write_pieces(self, pieces: Iterable[pb.ArrayPiece]) -> None:
        """Send the shard its pieces of a checkpoint.

        Raises:
            Refused: the checkpoint does not fit this job's model or optimizer.
            PlaneLost: the link went down.
        """
        call = self._require_channel().stream_unary(
            "/tiermesh.Shard/WritePart",
            request_serializer=pb.ArrayPiece.SerializeToString,
            response_deserializer=pb.PartWritten.FromString,
        )(metadata=self._metadata)
        channel = self._checkpoint_channel
        acknowledgement = "the acknowledgement of a piece of a checkpoint"
        try:
            for piece in pieces:
                await self.wait_for(call.write(piece), acknowledgement)
            await call.done_writing()
            await self.wait_for(call, acknowledgement)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if call.done() and not call.cancelled() and await call.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise Refused(await call.details()) from None
            self._raise_lost(error, channel)
            raise

    def _require_channel(self) -> grpc.aio.Channel:
        if self._checkpoint_channel is None:
            raise PlaneLost(f"{self}: {self.down_reason}")
        return self._checkpoint_channel

    def _raise_lost(self, error: BaseException, channel: grpc.aio.Channel | None) -> None:
        """End the link and raise PlaneLost, if it broke under the stream of a checkpoint."""
        if self._checkpoint_channel is not channel:
            raise PlaneLost(f"{self}: {self.down_reason}") from None
        if isinstance(error, grpc.aio.AioRpcError | DecodeError | asyncio.InvalidStateError):
            if isinstance(error, DecodeError):
                reason = "a message was damaged"
            elif isinstance(error, grpc.aio.AioRpcError):
                reason = error.details() or error.code().name
            else:  # grpcio raises it for a write on a call that the peer has ended
                reason = "the shard ended the call"
            raise self._close_lost(f"the stream of a checkpoint ended: {reason}") from None
