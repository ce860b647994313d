"""The aggregator's link to its optimizer: over gRPC (3-tier) or in the same process (2-tier).

Both call back on the event loop, never from within a call to them: the aggregator's core is never entered twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

from aggregator.core.succession import Deposed
from optimizer.core.events import Ordered
from optimizer.engine import EngineCallbacks, OptimizerEngine
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed, Refused
from services.instrumentation import timeline
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerBody, OptimizerOrder, unwrap, wrap
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
"""A finished sum to be sent, and the array in whose place it lies."""
_SUM_BYTES = 4


@dataclass(frozen=True)
class OptimizerLinkEvents:
    """What a link tells, on the event loop."""

    connected: Callable[[str], None]  # the optimizer's name
    lost: Callable[[str], None]  # why
    message: Callable[[OptimizerBody], None]
    # A chunk of weights is there; with the chunk and its message, if it came from elsewhere, when it raises Refused if
    # that is damaged.
    weights: Callable[[ChunkHeader, TensorChunk | None, Message | None], None]


class OptimizerLink(Protocol):
    """What the aggregator's service needs of a link."""

    async def run(self) -> None:
        """Keep the link up until cancelled.

        Raises:
            Failed: the optimizer will not have this aggregator (any more).
        """

    def tell(self, body: OptimizerOrder) -> None:
        """Send an order."""

    def read_checkpoint(self, request: pb.ReadCheckpointRequest) -> Any:
        """An async iterator over the file parts of a checkpoint."""


class GradientLink(OptimizerLink, Protocol):
    """A link that finished sums of this process go through."""

    def prepare(self, header: ChunkHeader, values: Float32Array, elements: int) -> Any:
        """Make a chunk of a layout of so many elements ready to be sent; called on the kernel thread."""

    def send(self, prepared: Any) -> None:
        """Send what `prepare` made; called on the event loop."""

    async def room(self) -> None:
        """Wait until few enough sums are on their way to the optimizer for workers to send more."""


class LocalOptimizerLink:
    """An engine in this process."""

    def __init__(
        self, engine: OptimizerEngine, *, name: str, epoch: int, events: OptimizerLinkEvents
    ) -> None:
        self._engine = engine
        self._epoch = epoch
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._hello = pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name=name, epoch_seen=epoch)
        self._refused: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Hand weights over as they come.

        Raises:
            Failed: the engine refused this aggregator.
        """
        outlet = EngineCallbacks(
            send=lambda body: _later(self._loop, self._events.message, body),
            refuse=lambda reason: self._refused.set_exception(Failed(reason)),
            wake=self._wake.set,
        )
        self._engine.connect(self._hello, outlet)
        self._events.connected(self._engine.name)
        await run_until_first_ends(self._take_weights(), _wait(self._refused))

    async def _take_weights(self) -> None:
        while True:
            self._wake.clear()
            header = await self._engine.next_weights()
            if header is None:
                await self._wake.wait()
            else:
                self._events.weights(header, None, None)

    def tell(self, body: OptimizerOrder) -> None:
        """Send an order."""
        _later(self._loop, self._order, body)

    def _order(self, body: OptimizerOrder) -> None:
        self._engine.feed(Ordered(self._epoch, body))
        self._wake.set()

    def prepare(
        self, header: ChunkHeader, values: Float32Array, elements: int
    ) -> tuple[ChunkHeader, Float32Array]:
        """Nothing to do: the engine takes the array as it is."""
        del elements
        return header, values

    def send(self, prepared: tuple[ChunkHeader, Float32Array]) -> None:
        """Send what `prepare` made."""
        _later(self._loop, self._engine.chunk_arrived, *prepared)

    async def room(self) -> None:
        """Wait while too many sums wait for the engine's kernel thread."""
        await self._engine.wait_for_room()

    def read_checkpoint(self, request: pb.ReadCheckpointRequest) -> Any:
        """The file parts of a checkpoint."""
        return self._engine.checkpoint_store.read_files(request)


class RemoteOptimizerLink:
    """An optimizer on another host: control and data on a connection each, opened again when they break."""

    def __init__(
        self,
        address: str,
        security: Security,
        *,
        name: str,
        incarnation: str,
        epoch: int,
        events: OptimizerLinkEvents,
        heartbeat_seconds: float,
        shared_memory: bool,
        count: Callable[[int], None],
    ) -> None:
        self._timeouts = Timeouts.from_heartbeat(heartbeat_seconds)
        self._shared_memory = shared_memory
        self._count = count
        self._address = address
        self._security = security
        self._streams = DataStreamConnector("/tiermesh.Optimizer/Exchange", security)
        self._epoch = epoch
        self._incarnation = incarnation
        self._events = events
        self._orders: Mailbox[pb.OptimizerCommand] = Mailbox()
        self._chunks: asyncio.Queue[Prepared] = asyncio.Queue()
        self._link: ClientTensorLink | None = None
        self._array: SharedArray | None = None  # of sums, that an optimizer on this host sees
        self._array_of = ("", 0)  # job, elements
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
            Deposed: the optimizer obeys a newer aggregator.
        """
        backoff = Backoff(max_seconds=self._timeouts.retry)
        said = ""
        while True:
            try:
                await self._attend(backoff)
                reason = "it ended the stream"
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
                self._events.lost(reason)
            elif reason != said:
                self._events.lost(reason)
            if reason != said:
                log.warning("optimizer %s; trying again", reason)
                said = reason
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
                raise LinkClosed("its first message is no Hello")
            link = ClientTensorLink(f"optimizer {hello.name}", enabled=self._shared_memory, count=self._count)
            self._orders, self._chunks = Mailbox(), asyncio.Queue()
            self._room.set()
            self._up, self._control, self._link = True, control, link
            backoff.reset()
            log.info("optimizer %s at %s", hello.name, self._address)
            self._events.connected(hello.name)
            heartbeats = Heartbeats(self._timeouts, lambda: self.tell(pb.Heartbeat()))
            try:
                await run_until_first_ends(
                    self._take_messages(attend, messages, heartbeats),
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
                self._take_weights(exchange, link),
                self._send_chunks(exchange, link),
            )

    async def _take_messages(
        self, attend: Any, messages: ControlReader[pb.OptimizerMessage], heartbeats: Heartbeats
    ) -> None:
        while (message := await messages.next()) is not None:
            heartbeats.message_received()
            body = unwrap(message)
            if body is None or isinstance(body, pb.Heartbeat) or message.epoch != self._epoch:
                continue
            self._events.message(body)
        await raise_call_status(attend)

    async def _send_orders(self, attend: Any) -> None:
        while True:
            await write_to_call(attend, await self._orders.take())

    async def _confirm(self, exchange: Any, link: ClientTensorLink) -> None:
        await link.confirm(exchange)
        await asyncio.Event().wait()  # ends with the stream

    async def _take_weights(self, exchange: Any, link: ClientTensorLink) -> None:
        while isinstance(message := await exchange.read(), Message):
            self._weights_arrived(link, message)
        await raise_call_status(exchange)

    def _weights_arrived(self, link: ClientTensorLink, message: Message) -> None:
        for chunk in link.deserialize(message):
            if chunk.memory is None:
                self._events.weights(chunk.header, chunk, message)
            else:  # a copy: the optimizer goes on to newer ones
                self._events.weights(chunk.header, copy_with_checksum(chunk), None)

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
                if array is not None:  # it was made ready for the link before this one
                    chunk = copy_with_checksum(chunk)
                parts = serialize_in_parts(chunk)
            await write_message(exchange, *parts)
            timeline.add("to optimizer", "send", began, chunk.header.step, chunk=chunk.header.index)

    def tell(self, body: OptimizerOrder) -> None:
        """Send an order; dropped while the link is down: it is asked anew when it is up."""
        if self._up:
            self._orders.put(wrap(pb.OptimizerCommand, self._epoch, body))

    def prepare(self, header: ChunkHeader, values: Float32Array, elements: int) -> Prepared:
        """The chunk, in its place of the array that the optimizer sees, if it sees any; else as `values`, which nobody
        else holds.

        What lies in its place from the step before is not needed any more: that step's COMMIT has come.
        """
        header.incarnation = self._incarnation
        array = self._shared(header.job, elements)
        if array is None:
            return pack_chunk(header, header.index, values), None
        array.mark(header.index, 0)
        chunk = pack_chunk(header, header.index, values, array.place(header.index))
        array.mark(header.index, version_mark(header))
        return chunk, array

    def _shared(self, job: str, elements: int) -> SharedArray | None:
        if self._link is None or not self._link.shares:
            return None
        if self._array_of != (job, elements):
            self._array_of = (job, elements)
            try:
                self._array = SharedArray(elements * _SUM_BYTES, CHUNK_ELEMENTS * _SUM_BYTES)
            except OSError as error:
                self._array = None
                log.warning("sums over gRPC: no shared memory can be made for them here (%s)", error)
        return self._array

    def send(self, prepared: Prepared) -> None:
        """Send what `prepare` made; dropped while the link is down: the optimizer lists what it misses."""
        if self._up:
            self._chunks.put_nowait(prepared)
            if self._chunks.qsize() >= WINDOW_CHUNKS:
                self._room.clear()

    async def room(self) -> None:
        """Wait while a window of sums waits to be sent: an optimizer that is slow slows the workers.

        At once while the link is down: what is sent then is dropped.
        """
        await self._room.wait()

    def read_checkpoint(self, request: pb.ReadCheckpointRequest) -> Any:
        """The file parts of a checkpoint (Failed: the optimizer is not connected)."""
        if self._control is None:
            raise Failed(f"optimizer {self._address} is not connected; try again when it is")
        return self._control.unary_stream(
            "/tiermesh.Optimizer/ReadCheckpoint",
            request_serializer=pb.ReadCheckpointRequest.SerializeToString,
            response_deserializer=pb.FilePart.FromString,
        )(request)


def _later(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    loop.call_soon(call, *arguments)


async def _wait(future: asyncio.Future[None]) -> None:
    await future
