"""A worker's data streams: one to its aggregator, or one to each of the aggregator's shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from plane.link_check.measure import LinkPeer
from plane.streams.data_streams import DataStreamConnector
from plane.streams.shared_memory_link import ClientTensorLink
from protos import cluster_pb2 as pb
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import TensorChunk
from services.tensors.stripes import Stripe
from services.transport.links import INCARNATION_KEY, SESSION_KEY, LinkClosed, run_until_first_ends
from worker.core.events import WeightsArrived
from worker.core.worker import WorkerCore
from worker.data_stream import DataStream
from worker.device_thread import DeviceThread


class ShardStreams:
    """The data streams of one connection to an aggregator.

    A chunk's index decides which stream it takes. All streams send at the same time.

    Args:
        aggregator: `HOST:PORT` of the aggregator.
        welcome: the aggregator's answer to Hello, which names its shards.
        streams: connector that opens data streams.
        shared_memory: whether payloads may travel through memory shared with a peer.
        core: the worker's core, which decides which chunks are sent.
        device: the device thread, which has the sums of leases.
        incarnation: id of this process.
        feed: callback that passes the core an input and the chunk it came with.
        metrics: metrics of this worker.
        on_open: callback, called when all streams are open.
    """

    def __init__(
        self,
        aggregator: str,
        welcome: pb.Welcome,
        *,
        streams: DataStreamConnector,
        shared_memory: bool,
        core: WorkerCore,
        device: DeviceThread,
        incarnation: str,
        feed: Callable[[WeightsArrived, TensorChunk], None],
        metrics: WorkerMetrics,
        on_open: Callable[[], None],
    ) -> None:
        shards = list(welcome.shards)
        count = len(shards)
        ports = [*welcome.shard_tensor_ports, *([0] * count)]
        self._sharded = count > 0
        self._peers = {
            Stripe(index, count): (f"shard {index} of {count} ({address})", address, ports[index])
            for index, address in enumerate(shards)
        } or {Stripe(): (f"aggregator {welcome.name}", aggregator, welcome.tensor_port)}
        self._metadata = ((INCARNATION_KEY, incarnation), (SESSION_KEY, str(welcome.session)))
        self._streams = streams
        self._shared_memory = shared_memory
        self._core = core
        self._device = device
        self._incarnation = incarnation
        self._feed = feed
        self._metrics = metrics
        self._on_open = on_open
        self._not_open = len(self._peers)  # streams that are not open yet
        self._open_streams: list[DataStream] = []

    def peer(self, shard: int) -> LinkPeer | None:
        """Return the other end of a stream, given the index of its shard or 0; None if there is none."""
        peers = list(self._peers.values())
        return LinkPeer(*peers[shard], self._metadata) if shard < len(peers) else None

    def wake(self) -> None:
        """Let all streams ask the core for chunks to send."""
        for stream in self._open_streams:
            stream.wake()

    async def run(self) -> None:
        """Move chunks until one of the streams ends.

        Raises:
            LinkClosed, grpc.aio.AioRpcError: the stream broke. With shards it is LinkClosed, which names the shard.
        """
        await run_until_first_ends(*(self._run(stripe, *peer) for stripe, peer in self._peers.items()))

    async def _run(self, stripe: Stripe, peer: str, address: str, tensor_port: int) -> None:
        link = ClientTensorLink(
            peer, enabled=self._shared_memory, count=self._metrics.change_shared_memory_links
        )
        metadata = (*self._metadata, *link.metadata)
        try:
            async with self._streams.open(address, tensor_port, metadata) as stream:
                data_stream = DataStream(
                    stream,
                    link,
                    stripe=stripe,
                    core=self._core,
                    device=self._device,
                    incarnation=self._incarnation,
                    feed=self._feed,
                    metrics=self._metrics,
                )
                self._open_streams.append(data_stream)
                try:
                    await run_until_first_ends(data_stream.run(), self._note_open(stream))
                finally:
                    self._open_streams.remove(data_stream)
        except (grpc.aio.AioRpcError, LinkClosed) as error:
            if not self._sharded:
                raise
            reason = error.details() or error.code().name if isinstance(error, grpc.RpcError) else error
            raise LinkClosed(f"{peer}: {reason}") from None
        finally:
            link.close()

    async def _note_open(self, stream: Any) -> None:
        await stream.initial_metadata()
        self._not_open -= 1
        if not self._not_open:
            self._on_open()
        await asyncio.Event().wait()  # until the data stream ends
