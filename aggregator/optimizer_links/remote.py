"""The link to an optimizer on another host (3-tier): a control and a data connection, reopened when they break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from aggregator.core.succession import Deposed
from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed, Refused
from services.instrumentation import timeline
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerOrder, unwrap, wrap
from services.protocol.plan import WINDOW_CHUNKS
from services.protocol.versions import PROTOCOL_VERSION
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
from services.transport.backoff import Backoff
from services.transport.control_streams import ControlReader, send_hello
from services.transport.data_streams import DataStreamConnector, write_message
from services.transport.heartbeats import Heartbeats
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
from services.transport.newest_weights import version_mark
from services.transport.security import Security
from services.transport.server import open_channel
from services.transport.shared_memory_link import ClientTensorLink

log = logging.getLogger("tiermesh.aggregator")

Prepared: TypeAlias = tuple[TensorChunk, SharedArray | None]
"""A finished sum to send, and the shared array that contains it; None if its payload is its own."""
_SUM_BYTES = 4
"""Bytes per element of a sum, which is float32."""


class RemoteOptimizerLink:
    """A `GradientLink` to an optimizer on another host.

    Args:
        address: The optimizer's `HOST:PORT`.
        security: The certificates to use.
        name: The aggregator's name.
        incarnation: The id of the aggregator's process.
        epoch: The aggregator's epoch.
        callbacks: The link's callbacks.
        heartbeat_seconds: The heartbeat that all timeouts follow from.
        shared_memory: Whether tensors may go through shared memory if the optimizer is on this host.
        count: Called with the change in the number of links that use shared memory.
        make_backoff: Makes the delays between attempts to connect.
    """

    def __init__(
        self,
        address: str,
        security: Security,
        *,
        name: str,
        incarnation: str,
        epoch: int,
        callbacks: OptimizerLinkCallbacks,
        heartbeat_seconds: float,
        shared_memory: bool,
        count: Callable[[int], None],
        make_backoff: type[Backoff] = Backoff,
    ) -> None:
        self._timeouts = Timeouts.from_heartbeat(heartbeat_seconds)
        self._shared_memory = shared_memory
        self._count = count
        self._address = address
        self._security = security
        self._streams = DataStreamConnector("/tiermesh.Optimizer/Exchange", security)
        self._epoch = epoch
        self._incarnation = incarnation
        self._callbacks = callbacks
        self._make_backoff = make_backoff
        self._orders: Mailbox[pb.OptimizerCommand] = Mailbox()
        self._chunks: asyncio.Queue[Prepared] = asyncio.Queue()
        self._link: ClientTensorLink | None = None
        self._array: SharedArray | None = None  # sums that an optimizer on this host reads in place
        self._array_key = ("", 0)  # job and elements that the array is for
        self._room = asyncio.Event()
        self._room.set()
        self._up = False
        self._control: grpc.aio.Channel | None = None
        self._hello = pb.Hello(
            protocol=PROTOCOL_VERSION,
            role="aggregator",
            name=name,
            incarnation=incarnation,
            epoch_seen=epoch,
            shard_count=1,
            heartbeat_seconds=heartbeat_seconds,
        )

    async def run(self) -> None:
        """Keep the link up until cancelled.

        Raises:
            Deposed: The optimizer obeys a newer aggregator.
        """
        backoff = self._make_backoff(max_seconds=self._timeouts.retry)
        last_reason = ""
        while True:
            try:
                await self._attend(backoff)
                reason = "the peer ended the stream"
            except LINK_ERRORS as error:
                reason = describe_link_error(error, "Hello")
                if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.ABORTED:
                    raise Deposed(f"optimizer {self._address}: {reason}") from None
            except (Refused, ValueError) as refused:
                reason = f"refused its weights: {refused}"
            reason = f"{self._address}: {reason}"
            if self._up:
                self._up = False
                self._room.set()
                self._callbacks.lost(reason)
            elif reason != last_reason:
                self._callbacks.lost(reason)
            if reason != last_reason:
                log.warning("optimizer %s; trying again", reason)
                last_reason = reason
            await backoff.wait()

    async def _attend(self, backoff: Backoff) -> None:
        control = open_channel(self._address, self._security, own_connection=True)
        async with control:
            attend = control.stream_stream(
                "/tiermesh.Optimizer/Attend",
                request_serializer=encode_with_checksum,
            )()
            messages = ControlReader(attend.read, pb.OptimizerMessage, "Attend")
            hello = unwrap(
                await send_hello(attend, wrap(pb.OptimizerCommand, self._epoch, self._hello), messages)
            )
            if not isinstance(hello, pb.Hello):
                raise LinkClosed("the first message is not a Hello; check that the address is an optimizer's")
            link = ClientTensorLink(f"optimizer {hello.name}", enabled=self._shared_memory, count=self._count)
            self._orders, self._chunks = Mailbox(), asyncio.Queue()
            self._room.set()
            self._up, self._control, self._link = True, control, link
            backoff.reset()
            log.info("optimizer %s: connected at %s", hello.name, self._address)
            self._callbacks.connected(hello.name)
            heartbeats = Heartbeats(self._timeouts, lambda: self.send_order(pb.Heartbeat()))
            try:
                await run_until_first_ends(
                    self._receive_messages(attend, messages, heartbeats),
                    self._send_orders(attend),
                    heartbeats.run(),
                    self._exchange(hello.tensor_port, link),
                )
            finally:
                self._control, self._link = None, None
                link.close()

    async def _exchange(self, tensor_port: int, link: ClientTensorLink) -> None:
        metadata = ((INCARNATION_KEY, self._incarnation), *link.metadata)
        async with self._streams.open(self._address, tensor_port, metadata) as exchange:
            await run_until_first_ends(
                self._confirm(exchange, link),
                self._receive_weights(exchange, link),
                self._send_chunks(exchange, link),
            )

    async def _receive_messages(
        self, attend: Any, messages: ControlReader[pb.OptimizerMessage], heartbeats: Heartbeats
    ) -> None:
        while (message := await messages.next()) is not None:
            heartbeats.message_received()
            body = unwrap(message)
            if body is None or isinstance(body, pb.Heartbeat) or message.epoch != self._epoch:
                continue
            self._callbacks.message(body)
        await raise_call_status(attend)

    async def _send_orders(self, attend: Any) -> None:
        while True:
            await write_to_call(attend, await self._orders.take())

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
                self._callbacks.weights(chunk.header, chunk, message)
            else:  # a copy, since the optimizer will overwrite its memory with newer weights
                self._callbacks.weights(chunk.header, copy_with_checksum(chunk), None)

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
            timeline.add("to optimizer", "send", began, chunk.header.step, chunk=chunk.header.index)

    def send_order(self, body: OptimizerOrder) -> None:
        """Send an order, or drop it while the link is down: the core sends Open again once it is up."""
        if self._up:
            self._orders.put(wrap(pb.OptimizerCommand, self._epoch, body))

    def prepare(self, header: ChunkHeader, values: Float32Array, elements: int) -> Prepared:
        """Return a finished sum as a chunk, copied into shared memory if the optimizer reads that.

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
        if self._array_key != (job, elements):
            self._array_key = (job, elements)
            try:
                self._array = SharedArray(elements * _SUM_BYTES, CHUNK_ELEMENTS * _SUM_BYTES)
            except OSError as error:
                self._array = None
                log.warning("sums go over gRPC: shared memory can't be created (%s)", error)
        return self._array

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

    def read_checkpoint(self, request: pb.ReadCheckpointRequest) -> Any:
        """Return an async iterator over the file parts of a checkpoint.

        Raises:
            Failed: The optimizer is not connected.
        """
        if self._control is None:
            raise Failed(f"optimizer {self._address} is not connected; try again when it is")
        return self._control.unary_stream(
            "/tiermesh.Optimizer/ReadCheckpoint",
            request_serializer=pb.ReadCheckpointRequest.SerializeToString,
            response_deserializer=pb.FilePart.FromString,
        )(request)
