"""A worker's plane: the sums of its leases go out, and weights come in, as its core orders.

It has a data stream to the aggregator, or one to each of its shards. Bookkeeping happens on the event loop. Each stream
has a thread of its own that rounds outgoing chunks, copies them and computes their checksums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from plane.lease_sums import LeaseSums
from plane.link_check.measure import LinkPeer
from plane.streams.data_streams import DataStreamConnector, write_message
from plane.streams.shared_memory_link import MAX_PLACES, ClientTensorLink
from plane.streams.sum_writer import SumWriter
from plane.sum_queue import SumQueue, WorkerOrder
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refused
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import WorkerMetrics
from services.tasks import call_in
from services.tensors.chunk_messages import (
    ChunkOverwritten,
    Message,
    TensorChunk,
    bytes_per_element,
    check_chunk,
)
from services.tensors.stripes import Stripe
from services.transport.links import (
    INCARNATION_KEY,
    SESSION_KEY,
    LinkClosed,
    raise_call_status,
    run_until_first_ends,
)

MESSAGES_AT_ONCE = 4
"""Maximum number of chunks that the sender thread prepares at once. Each of its turns costs wake-ups."""


class WorkerPlane:
    """The plane of one worker, through all of its connections to aggregators.

    A chunk's index decides which stream it takes. All streams send at the same time.

    Args:
        connector: opens data streams.
        shared_memory: whether payloads may travel through memory shared with a peer.
        incarnation: id of this process.
        arrived: called with a piece of the job's weights that has arrived.
        opened: called when all streams of a connection are open.
        metrics: metrics of this worker.

    Attributes:
        sums: the sums of its leases.
    """

    def __init__(
        self,
        connector: DataStreamConnector,
        *,
        shared_memory: bool,
        incarnation: str,
        arrived: Callable[[TensorChunk], None],
        opened: Callable[[], None],
        metrics: WorkerMetrics,
    ) -> None:
        self.sums = LeaseSums()
        self._connector = connector
        self._shared_memory = shared_memory
        self._incarnation = incarnation
        self._arrived = arrived
        self._opened = opened
        self._metrics = metrics
        self._queue = SumQueue()
        self._peers: list[LinkPeer] = []  # by shard, of the newest connection
        self._has_shards = False
        self._not_open = 0  # streams that are not open yet
        self._wakes: list[asyncio.Event] = []  # of the open streams; set when there may be pieces to send

    def carry_out(self, order: WorkerOrder) -> None:
        """Carry out an order."""
        self._queue.carry_out(order)
        if isinstance(order, pb.SendSum):
            for wake in self._wakes:
                wake.set()

    # ---- connections ----

    def connect(self, aggregator: str, welcome: cluster.Welcome) -> None:
        """Take the peers of a new connection, with which `exchange` exchanges tensors.

        Args:
            aggregator: `HOST:PORT` of the aggregator.
            welcome: its answer to Hello, which names its shards.
        """
        self.sums.sharing = False  # until a peer has seen this process's memory
        metadata = ((INCARNATION_KEY, self._incarnation), (SESSION_KEY, str(welcome.session)))
        count = len(welcome.shards)
        ports = [*welcome.shard_tensor_ports, *([0] * count)]
        self._has_shards = count > 0
        self._peers = [
            LinkPeer(f"shard {index} of {count} ({address})", address, ports[index], metadata)
            for index, address in enumerate(welcome.shards)
        ] or [LinkPeer(f"aggregator {welcome.name}", aggregator, welcome.tensor_port, metadata)]
        self._not_open = len(self._peers)

    def peer(self, shard: int) -> LinkPeer | None:
        """Return the other end of a stream, given the index of its shard or 0; None if there is none."""
        return self._peers[shard] if shard < len(self._peers) else None

    async def exchange(self) -> None:
        """Move tensors both ways until one of the streams ends.

        Raises:
            grpc.aio.AioRpcError: the stream broke.
            LinkClosed: weights were refused, or the peer broke the protocol of shared memory. With shards, any end of a
                stream, whose text names the shard.
        """
        count = len(self._peers)
        await run_until_first_ends(
            *(self._exchange(Stripe(index, count), peer) for index, peer in enumerate(self._peers))
        )

    async def _exchange(self, stripe: Stripe, peer: LinkPeer) -> None:
        link = ClientTensorLink(
            peer.label, enabled=self._shared_memory, count=self._metrics.change_shared_memory_links
        )
        metadata = (*peer.metadata, *link.metadata)
        try:
            async with self._connector.open(peer.address, peer.tensor_port, metadata) as stream:
                await run_until_first_ends(
                    self._note_open(stream, link),
                    self._receive_weights(stream, link),
                    self._send_sums(stream, link, stripe),
                )
        except (grpc.aio.AioRpcError, LinkClosed) as error:
            if not self._has_shards:
                raise
            reason = error.details() or error.code().name if isinstance(error, grpc.RpcError) else error
            raise LinkClosed(f"{peer.label}: {reason}") from None
        finally:
            link.close()

    async def _note_open(self, stream: Any, link: ClientTensorLink) -> None:
        await link.confirm(stream)
        if link.shares:
            self.sums.sharing = True
        await stream.initial_metadata()
        self._not_open -= 1
        if not self._not_open:
            self._opened()
        await asyncio.Event().wait()  # until the stream ends

    # ---- weights ----

    async def _receive_weights(self, stream: Any, link: ClientTensorLink) -> None:
        while isinstance(message := await stream.read(), Message):
            try:
                self._take_weights(link, message)
            except (Refused, ValueError) as refused:
                raise LinkClosed(f"refused weights: {refused}") from None
        await raise_call_status(stream)

    def _take_weights(self, link: ClientTensorLink, message: Message) -> None:
        """Report the chunks of a message. The stream's error, which is kept, would keep the memory of a chunk above."""
        job = self._queue.job
        for chunk in link.deserialize(message):
            header = chunk.header
            if not job.job or header.job != job.job:
                continue  # the job has ended
            try:
                check_chunk(chunk, job.elements, job.weights, pieces=job.pieces)
            except ChunkOverwritten:
                continue  # newer weights have overwritten it and are on their way
            timeline.mark("receive", "weights", header.step, job=header.job, chunk=header.index)
            self._metrics.count_received(header.job, len(chunk.payload))
            self._arrived(chunk)

    # ---- sums ----

    async def _send_sums(self, stream: Any, link: ClientTensorLink, stripe: Stripe) -> None:
        writer, wake = SumWriter(link), asyncio.Event()
        sender = ThreadPoolExecutor(1, "send")
        self._wakes.append(wake)
        try:
            while True:
                wake.clear()
                headers = self._queue.take(stripe, MAX_PLACES if link.shares else MESSAGES_AT_ONCE)
                if headers:
                    await self._send_pieces(headers, stream, sender, writer)
                else:
                    await wake.wait()
        finally:
            self._wakes.remove(wake)
            sender.shutdown(wait=False, cancel_futures=True)

    async def _send_pieces(
        self, headers: list[ChunkHeader], stream: Any, sender: ThreadPoolExecutor, writer: SumWriter
    ) -> None:
        lease_sum = self.sums.find(headers[0].lease)
        assert lease_sum is not None, "pieces are dropped before their sum is retired"
        for header in headers:
            header.incarnation = self._incarnation
        began = timeline.now()
        hit_failpoint("worker.send")
        for parts in await call_in(sender, writer.write, headers, lease_sum):
            await write_message(stream, *parts)
        for header in headers:
            facts: dict[str, Any] = {"lease": header.lease, "chunk": header.index}
            timeline.add("send", "send", began, header.step, job=header.job, **facts)
            self._metrics.count_sent(header.job, header.elements * bytes_per_element(header.dtype))
