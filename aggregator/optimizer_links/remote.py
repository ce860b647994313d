"""The link to an optimizer on another host (3-tier): a control and a data connection, reopened when they break."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

import grpc

from aggregator.epoch_check import check_epoch
from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from aggregator.optimizer_links.orders_with_files import OrdersWithFiles
from plane.link_check.measure import LinkPeer
from plane.streams.data_streams import DataStreamConnector, write_message
from plane.streams.newest_weights import version_mark
from plane.streams.shared_memory_link import ClientTensorLink
from protos import cluster_pb2 as pb
from protos.files_pb2 import FilePiece, ReadFileRequest
from protos.jobs_pb2 import Connection
from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed, Refusal, Refused
from services.files.errors import FileDamaged
from services.files.store import FileStore
from services.files.transfer import receive_pieces
from services.instrumentation import timeline
from services.protocol.envelope import OptimizerOrder, unwrap, wrap
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.protocol.plan import WINDOW_CHUNKS
from services.tensors.chunk_messages import (
    Message,
    TensorChunk,
    copy_with_checksum,
    pack_chunk,
    serialize_in_parts,
)
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray
from services.timeouts import Timeouts
from services.transport.addresses import split_address
from services.transport.backoff import Backoff
from services.transport.control.attend_client import AttendMethod, LinkEnd, OpenLink, keep_attending
from services.transport.control.heartbeats import Heartbeats
from services.transport.control.measurements import MeasuredPeer
from services.transport.links import (
    INCARNATION_KEY,
    LinkClosed,
    raise_call_status,
    run_until_first_ends,
)
from services.transport.mailbox import Mailbox
from services.transport.obstacles import OPTIMIZER
from services.transport.security import Security
from services.transport.server import open_channel

log = logging.getLogger("tiermesh.aggregator")

Prepared: TypeAlias = tuple[TensorChunk, SharedArray | None]
"""A finished sum to send, and the shared array that contains it; None if its payload is its own."""
_Link: TypeAlias = OpenLink[pb.OptimizerCommand, pb.OptimizerMessage, pb.Hello]
_ATTEND = AttendMethod(
    "/tiermesh.Optimizer/Attend",
    pb.OptimizerMessage,
    unwrap,
    pb.Hello,
    OPTIMIZER,
)
_SUM_BYTES = 4
"""Bytes per element of a sum, which is float32."""


class _JobArray(NamedTuple):
    """Shared array of a job's sums; None if it could not be created.

    Attributes:
        elements: number of elements of the job's layout.
        array: as above.
    """

    elements: int
    array: SharedArray | None


class RemoteOptimizerLink:
    """An `OptimizerLink` to an optimizer on another host, which also carries finished sums from this process.

    Args:
        address: the optimizer's `HOST:PORT`.
        security: the certificates to use.
        name: the aggregator's name.
        incarnation: the id of the aggregator's process.
        epoch: the aggregator's epoch.
        cluster: the identity of its cluster.
        callbacks: the link's callbacks.
        heartbeat_seconds: the heartbeat that all timeouts follow from.
        files: the files that orders refer to.
        shared_memory: whether tensors may go through shared memory if the optimizer is on this host.
        count: called with the change in the number of links that use shared memory.
        make_backoff: makes the delays between attempts to connect.

    Attributes:
        address: as above.
    """

    def __init__(
        self,
        address: str,
        security: Security,
        *,
        name: str,
        incarnation: str,
        epoch: int,
        cluster: str,
        callbacks: OptimizerLinkCallbacks,
        heartbeat_seconds: float,
        files: FileStore,
        shared_memory: bool,
        count: Callable[[int], None],
        make_backoff: type[Backoff] = Backoff,
    ) -> None:
        self._timeouts = Timeouts.from_heartbeat(heartbeat_seconds)
        self._shared_memory = shared_memory
        self._count = count
        self.address = address
        self._security = security
        self._streams = DataStreamConnector("/tiermesh.Optimizer/Exchange", security)
        self._epoch = epoch
        self._incarnation = incarnation
        self._callbacks = callbacks
        self._outgoing = OrdersWithFiles(files)
        self._orders: Mailbox[pb.OptimizerCommand] = Mailbox()
        self._chunks: asyncio.Queue[Prepared] = asyncio.Queue()
        self._link: ClientTensorLink | None = None
        self._arrays: dict[
            str, _JobArray
        ] = {}  # by job: its sums that an optimizer on this host reads in place
        self._open_jobs: set[str] = set()
        self._room = asyncio.Event()
        self._room.set()
        self._up = False
        self._peer: LinkPeer | None = None  # set while the link is up
        self._measured: MeasuredPeer | None = None  # the same
        self._control: grpc.aio.Channel | None = None
        self._backoff = make_backoff(max_seconds=self._timeouts.retry)
        self._hello = make_hello(
            Role.AGGREGATOR,
            name,
            incarnation=incarnation,
            epoch_seen=epoch,
            cluster=cluster,
            heartbeat_seconds=heartbeat_seconds,
        )

    def __str__(self) -> str:
        return f"optimizer {self.address}"

    async def run(self) -> None:
        """Keep the link up until cancelled.

        Raises:
            EpochBehind: the optimizer has obeyed a newer epoch, whose aggregator is gone.
        """
        await keep_attending(self, _ATTEND, self._security, self._backoff)

    # ---- as an `Attendant` ----

    def begin(self) -> pb.OptimizerCommand:
        """Return the first message."""
        return wrap(pb.OptimizerCommand, self._epoch, self._hello)

    def check_answer(self, link: _Link) -> Refusal | None:
        """Return why the optimizer's Hello is not accepted."""
        return check_hello(
            link.answer, HelloExpectations("aggregator", Role.OPTIMIZER, cluster=self._hello.cluster)
        )

    async def attend(self, link: _Link) -> None:
        """Exchange orders, messages and tensors until the link ends."""
        hello = link.answer
        tensors = ClientTensorLink(f"optimizer {hello.name}", enabled=self._shared_memory, count=self._count)
        self._orders, self._chunks = Mailbox(), asyncio.Queue()
        self._outgoing.reset()
        self._room.set()
        self._up, self._control, self._link = True, link.channel, tensors
        self._peer = LinkPeer(f"optimizer {hello.name}", self.address, hello.tensor_port, self._caller)
        self._measured = MeasuredPeer(split_address("optimizer", self.address)[0], hello)
        self._backoff.reset()
        log.info("optimizer %s: connected at %s", hello.name, self.address)
        self._callbacks.connected(hello.name, hello)
        heartbeats = Heartbeats(
            self._timeouts, lambda: self._put(pb.Heartbeat(sent_seconds=time.monotonic()))
        )
        try:
            await link.stream.run(
                self._orders.take,
                self._take_message,
                self._exchange(hello.tensor_port, tensors),
                self._send_orders(f"optimizer {hello.name}"),
                heartbeats=heartbeats,
            )
        finally:
            self._control, self._link, self._peer, self._measured = None, None, None, None
            tensors.close()

    def ended(self, end: LinkEnd) -> bool:
        """Drop sums and orders until the link is up again."""
        check_epoch(self, end)
        if self._up or end.is_news:
            self._up = False
            self._room.set()
            self._callbacks.lost(
                end.reason if self.address in end.reason else f"{self.address}: {end.reason}"
            )
        return True

    def _take_message(self, message: pb.OptimizerMessage) -> None:
        body = unwrap(message)
        if isinstance(body, pb.Heartbeat):
            if self._measured is not None:
                self._measured.heard(body)
        elif body is not None and message.epoch == self._epoch:
            self._callbacks.message(body)

    def connection(self) -> Connection | None:
        """Return what is known of the connection; None while it is down."""
        return None if self._measured is None else self._measured.connection()

    # ---- tensors ----

    async def _exchange(self, tensor_port: int, link: ClientTensorLink) -> None:
        metadata = ((INCARNATION_KEY, self._incarnation), *link.metadata)
        async with self._streams.open(self.address, tensor_port, metadata) as exchange:
            try:
                await run_until_first_ends(
                    self._confirm(exchange, link),
                    self._receive_weights(exchange, link),
                    self._send_chunks(exchange, link),
                )
            except (Refused, ValueError) as refused:
                raise LinkClosed(f"refused its weights: {refused}") from None

    async def _confirm(self, exchange: Any, link: ClientTensorLink) -> None:
        await link.confirm(exchange)
        await asyncio.Event().wait()  # cancelled when the stream ends

    async def _receive_weights(self, exchange: Any, link: ClientTensorLink) -> None:
        while isinstance(message := await exchange.read(), Message):
            self._weights_arrived(link, message)
        await raise_call_status(exchange)

    def _weights_arrived(self, link: ClientTensorLink, message: Message) -> None:
        for chunk in link.deserialize(message):
            if chunk.memory is None:
                self._callbacks.weights(chunk, message)
            else:  # a copy, since the optimizer will overwrite its memory with newer weights
                self._callbacks.weights(copy_with_checksum(chunk), None)

    async def _send_chunks(self, exchange: Any, link: ClientTensorLink) -> None:
        while True:
            chunk, array = await self._chunks.get()
            if self._chunks.qsize() < WINDOW_CHUNKS:
                self._room.set()
            began = timeline.now()
            if array is not None and link.shares:
                header = chunk.header
                parts: tuple[Message, ...] = (
                    link.refer(header, array, version_mark(header), (header.index,)),
                )
            else:
                if array is not None:  # it was prepared for the previous link
                    chunk = copy_with_checksum(chunk)
                parts = serialize_in_parts(chunk)
            await write_message(exchange, *parts)
            header = chunk.header
            timeline.add("to optimizer", "send", began, header.step, job=header.job, chunk=header.index)

    def send_order(self, body: OptimizerOrder) -> None:
        """Send an order, or drop it while the link is down: the core sends Open again once it is up."""
        if isinstance(body, pb.Open):
            self._open_jobs.add(body.job)
        elif isinstance(body, pb.Close):
            self._open_jobs.discard(body.job)
            self._free_arrays()
        if self._up:
            self._outgoing.put(body)

    async def _send_orders(self, optimizer: str) -> None:
        """Send orders behind the files that they refer to, which have a connection of their own."""
        async with open_channel(self.address, self._security, own_connection=True) as files:
            await self._outgoing.run(files, optimizer, self._put, self._callbacks.message)

    def _put(self, body: OptimizerOrder) -> None:
        """Have an order sent now; the optimizer has the files that it refers to."""
        self._orders.put(wrap(pb.OptimizerCommand, self._epoch, body))

    def prepare(self, header: ChunkHeader, values: Float32Array, elements: int) -> Prepared:
        """Return a finished sum as a chunk, copied into shared memory if the optimizer reads that.

        It is called on the plane's kernel thread.

        The previous step's sum in the same place can be overwritten, since that step is committed.
        """
        header.incarnation = self._incarnation
        array = self._shared_array(header.job, elements)
        if array is None:
            return pack_chunk(header, header.index, values), None
        array.mark(header.index, 0)
        chunk = pack_chunk(header, header.index, values, array.place(header.index))
        array.mark(header.index, version_mark(header))
        return chunk, array

    def _shared_array(self, job: str, elements: int) -> SharedArray | None:
        if self._link is None or not self._link.shares:
            return None
        found = self._arrays.get(job)
        if found is None or found.elements != elements:
            array: SharedArray | None = None
            try:
                array = SharedArray(elements * _SUM_BYTES, CHUNK_ELEMENTS * _SUM_BYTES)
            except OSError as error:
                log.warning("job %s: sums go over gRPC: shared memory can't be created (%s)", job, error)
            found = self._arrays[job] = _JobArray(elements, array)
        return found.array

    def _free_arrays(self) -> None:
        """Free the arrays of jobs that are not open; the kernel thread may add one at the same time."""
        for job in list(self._arrays):
            if job not in self._open_jobs:
                self._arrays.pop(job, None)

    def send(self, prepared: Prepared) -> None:
        """Send a prepared sum, or drop it while the link is down: the optimizer later lists what it misses."""
        if self._up:
            self._chunks.put_nowait(prepared)
            if self._chunks.qsize() >= WINDOW_CHUNKS:
                self._room.clear()

    async def wait_for_room(self) -> None:
        """Wait while a window of sums waits to be sent, so that a slow optimizer slows the workers.

        Return at once while the link is down, since sums are dropped then.
        """
        await self._room.wait()

    async def list_files(self, request: pb.CheckpointRequest) -> pb.CheckpointFiles | None:
        """Return the files of a checkpoint; None if the answer was damaged on the way.

        Raises:
            Failed: the optimizer is not connected.
        """
        reply: pb.CheckpointFiles | None = await self._open_control().unary_unary(
            "/tiermesh.Optimizer/Checkpoint",
            request_serializer=pb.CheckpointRequest.SerializeToString,
            response_deserializer=pb.CheckpointFiles.FromString,
        )(request, metadata=self._caller, timeout=self._timeouts.stall)
        return reply

    async def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a checkpoint's file that begins at a request's offset.

        Each piece is a call of its own, so the optimizer never waits for who reads the whole.

        Raises:
            Failed: the optimizer is not connected.
            FileDamaged: the answer was damaged on the way.
        """
        async with aclosing(receive_pieces(self._open_control(), request)) as pieces:
            async for piece in pieces:
                return piece
        raise FileDamaged("the optimizer has sent no piece; read it again")

    def list_checkpoints(self, request: pb.ListCheckpointsRequest) -> Any:
        """Return an async iterator over the checkpoints of some jobs.

        Raises:
            Failed: the optimizer is not connected.
        """
        return self._open_control().unary_stream(
            "/tiermesh.Optimizer/ListCheckpoints",
            request_serializer=pb.ListCheckpointsRequest.SerializeToString,
            response_deserializer=pb.StoredCheckpoint.FromString,
        )(request, metadata=self._caller, timeout=self._timeouts.stall)

    async def remove_checkpoints(
        self, request: pb.RemoveCheckpointsRequest
    ) -> pb.RemoveCheckpointsReply | None:
        """Remove checkpoints of a job that has ended; return None if the answer was damaged on the way.

        Raises:
            Failed: the optimizer is not connected.
        """
        reply: pb.RemoveCheckpointsReply | None = await self._open_control().unary_unary(
            "/tiermesh.Optimizer/RemoveCheckpoints",
            request_serializer=pb.RemoveCheckpointsRequest.SerializeToString,
            response_deserializer=pb.RemoveCheckpointsReply.FromString,
        )(request, metadata=self._caller, timeout=self._timeouts.stall)
        return reply

    def peer(self) -> LinkPeer:
        """Return the optimizer as the other end of this link.

        Raises:
            Failed: the optimizer is not connected.
        """
        if self._peer is None:
            raise Failed(f"optimizer {self.address} is not connected; start it, and look at its log")
        return self._peer

    @property
    def _caller(self) -> tuple[tuple[str, str], ...]:
        """Metadata of calls that the optimizer takes from the aggregator that it obeys alone."""
        return ((INCARNATION_KEY, self._incarnation),)

    def _open_control(self) -> grpc.aio.Channel:
        if self._control is None:
            raise Failed(f"optimizer {self.address} is not connected; try again when it is")
        return self._control
