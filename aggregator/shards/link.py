"""An aggregator's link to one shard: orders and reports on one TCP connection, files on another."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from aggregator.epoch_check import check_epoch
from plane.checkpoint_files import GatheredTensors, checkpoint_file
from plane.errors import PlaneLost
from plane.link import CheckpointPart, PlaneLinks
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
from protos.files_pb2 import FileRef
from protos.jobs_pb2 import ShardStatus
from services.checkpoints.format import Checkpoint
from services.errors import Failed, Refusal
from services.files.fetch import fetch
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
from services.files.transfer import upload
from services.protocol.file_refs import make_ref
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.tasks import start_awaited
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.addresses import split_address
from services.transport.backoff import Backoff
from services.transport.control.attend_client import AttendMethod, LinkEnd, OpenLink, keep_attending
from services.transport.control.measurements import MeasuredPeer
from services.transport.links import INCARNATION_KEY
from services.transport.mailbox import Mailbox
from services.transport.obstacles import SHARD
from services.transport.security import Security
from services.transport.server import open_channel

log = logging.getLogger("tiermesh.aggregator")

Result = TypeVar("Result")
_Tell: TypeAlias = "Callable[[FileRef, int], None]"
"""Takes a file and the number of its bytes that have moved."""


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

    Attributes:
        name: name of the shard; empty before its first Hello.
        hello: its last Hello; None before the first.
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
    ) -> None:
        self.local: Plane | None = None
        self.address = address
        self.stripe = stripe
        self.name = ""
        self.hello: cluster_pb2.Hello | None = None
        self.tensor_port = 0
        self.down_reason = "not connected yet"
        self._last_end = ""  # reason of it; the link may be up again
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
        self._links: PlaneLinks
        self._orders: Mailbox[pb.PlaneOrder] = Mailbox(MAX_QUEUED_MESSAGES)
        self._measured: MeasuredPeer | None = None  # while the link is up
        self._channel: grpc.aio.Channel | None = None  # for files; None: the link is down
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # by job: of the shard's work for a step

    def __str__(self) -> str:
        return f"shard {self.stripe.index} of {self.stripe.count} ({self.address})"

    def describe(self, reason: str) -> str:
        """Return what the shard says, with its name."""
        return f"{self}: {reason}"

    @property
    def is_up(self) -> bool:
        """Whether orders reach the shard."""
        return self._channel is not None

    def status(self) -> ShardStatus:
        """Return the shard's status, for people."""
        silent_seconds = asyncio.get_running_loop().time() - self.last_heard_seconds
        return ShardStatus(
            index=self.stripe.index,
            address=self.address,
            name=self.name,
            detail=self.down_reason,
            seconds_since_heard=silent_seconds if self.is_up else 0.0,
            connection=self._measured.connection() if self._measured is not None and self.is_up else None,
        )

    def join(self, links: PlaneLinks) -> None:
        """Take the group that this link is in."""
        self._links = links

    def beat(self) -> None:
        """Send a heartbeat, and end the link of a shard that has been silent for too long."""
        self.send_order(cluster_pb2.Heartbeat(sent_seconds=time.monotonic()))
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
            self._channel, self.down_reason = None, reason
            self._last_end = reason
            self._orders.close(reason)
            for deadline in self._deadlines.values():
                deadline.cancel()
            self._deadlines.clear()
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
        self.hello = hello = link.answer
        async with open_channel(self.address, self._security, own_connection=True) as channel:
            self._orders = Mailbox(MAX_QUEUED_MESSAGES)
            self._channel, self.name, self.down_reason = channel, hello.name, ""
            self.tensor_port = hello.tensor_port
            self._measured = MeasuredPeer(split_address("shard", self.address)[0], hello)
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
            if isinstance(body, cluster_pb2.Heartbeat) and self._measured is not None:
                self._measured.heard(body)
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

    def expect(self, job: str, what: str, is_pending: Callable[[], bool]) -> None:
        """End the link if the shard's work for a step of a job is still pending after the `stall` timeout.

        One expectation of a job at a time: a new one replaces the former.

        Args:
            job: id of the job.
            what: name of the work for the error text.
            is_pending: returns whether the work is still awaited.
        """
        if (former := self._deadlines.pop(job, None)) is not None:
            former.cancel()
        loop = asyncio.get_running_loop()
        self._deadlines[job] = loop.call_later(
            self._timeouts.stall, self._end_if_pending, job, what, is_pending
        )

    def _end_if_pending(self, job: str, what: str, is_pending: Callable[[], bool]) -> None:
        self._deadlines.pop(job, None)
        if is_pending():
            self.close(f"job {job}: {self._describe_late(what)}")

    def _describe_late(self, what: str) -> str:
        return f"{what} did not come within {self._timeouts.stall:g} s"

    def _close_lost(self, reason: str) -> PlaneLost:
        """End the link, since a job needs the tensors of all shards, and return the error to raise."""
        self.close(reason)
        return PlaneLost(f"{self}: {reason}")

    # ---- files ----

    async def prepare(
        self, job: str, layout: Layout, text: bytes, checkpoint: Checkpoint | None
    ) -> CheckpointPart | None:
        """Send the shard the layout, and return its part of the checkpoint (Refused, Failed, PlaneLost)."""
        await self._upload(make_ref(text), MemoryFile([text]), f"the layout of job {job}")
        if checkpoint is None:
            return None
        file = checkpoint_file(job, checkpoint, self.stripe)
        ref = await asyncio.to_thread(file.make_ref)
        return CheckpointPart(ref, file)

    async def restore(self, job: str, part: CheckpointPart | None) -> None:
        """Send the shard its part of the job's checkpoint (Refused, Failed, PlaneLost)."""
        if part is not None:
            await self._upload(*part, f"its part of the checkpoint of job {job}")

    async def _upload(self, ref: FileRef, file: MemoryFile, what: str) -> None:
        files = FilesInMemory()
        files.add(ref, file)
        await self._transfer(lambda channel, tell: upload(channel, files, [ref], str(self), tell=tell), what)

    async def gather(self, copied: pb.CopiedPart, into: GatheredTensors) -> None:
        """Read the shard's part of a copy (Refused, Failed, PlaneLost)."""
        file, files = into.file_of(copied.job, self.stripe), FilesInMemory()
        file.expect_in(files, copied.file)

        async def read(channel: grpc.aio.Channel, tell: _Tell) -> None:
            await fetch(
                channel, files, copied.file.sha256, str(self), lambda ref, here, reason: tell(ref, here)
            )

        await self._transfer(read, f"copy {copied.copy} of its tensors")

    async def _transfer(
        self, start: Callable[[grpc.aio.Channel, _Tell], Coroutine[Any, Any, None]], what: str
    ) -> None:
        """Run a transfer of files while the link is up, and some of it moves within the `stall` timeout."""
        channel = self._channel
        if channel is None:
            raise PlaneLost(f"{self}: {self.down_reason}")
        moved = before = ("", 0)

        def tell(ref: FileRef, here: int) -> None:
            nonlocal moved
            moved = ref.sha256, here

        transfer = start_awaited(start(channel, tell))
        try:
            while not (await asyncio.wait({transfer}, timeout=self._timeouts.stall))[0]:
                if moved == before:
                    raise self._close_lost(f"{what}: no byte moved within {self._timeouts.stall:g} s")
                before = moved
            await transfer
        except (Exception, asyncio.CancelledError):
            if self._channel is channel:
                raise
        finally:
            transfer.cancel()
        if self._channel is not channel:  # closed while the transfer ran, which cancels its calls
            raise PlaneLost(f"{self}: {self._last_end}")
