"""A worker's data streams: one to its aggregator or, where that has shards, one to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from protos import cluster_pb2 as pb
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import TensorChunk
from services.tensors.stripes import Stripe
from services.transport.data_streams import DataStreamConnector
from services.transport.links import INCARNATION_KEY, SESSION_KEY, LinkClosed, run_until_first_ends
from services.transport.shared_memory_link import ClientTensorLink
from worker.core.events import WeightsArrived
from worker.core.worker import WorkerCore
from worker.data_stream import DataStream
from worker.device_thread import DeviceThread


class ShardStreams:
    """The data streams of one connection to an aggregator.

    Each chunk goes through the lane that its index says, and lanes send side by side, so that all of them are busy.

    Args:
        aggregator: `HOST:PORT` of it.
        welcome: its answer to Hello, which names its shards.
        streams: opens them.
        shared_memory: whether payloads may go through memory shared with a peer.
        core: decides what is sent, and takes what comes.
        device: holds the sums.
        incarnation: of this process.
        feed: gives the core an input that came with a chunk.
        metrics: of this worker.
        up: called when all streams are.
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
        up: Callable[[], None],
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
        self._up = up
        self._down = len(self._peers)  # streams that are not up yet
        self._exchanges: list[DataStream] = []

    def wake(self) -> None:
        """There may be something to send."""
        for exchange in self._exchanges:
            exchange.wake()

    async def run(self) -> None:
        """Move chunks until one of the streams ends.

        Raises:
            LinkClosed, grpc.aio.AioRpcError: it ended badly; LinkClosed names the shard.
        """
        await run_until_first_ends(*(self._run(stripe, *peer) for stripe, peer in self._peers.items()))

    async def _run(self, stripe: Stripe, peer: str, address: str, tensor_port: int) -> None:
        link = ClientTensorLink(
            peer, enabled=self._shared_memory, count=self._metrics.change_shared_memory_links
        )
        metadata = (*self._metadata, *link.metadata)
        try:
            async with self._streams.open(address, tensor_port, metadata) as stream:
                exchange = DataStream(
                    stream,
                    link,
                    stripe=stripe,
                    core=self._core,
                    device=self._device,
                    incarnation=self._incarnation,
                    feed=self._feed,
                    metrics=self._metrics,
                )
                self._exchanges.append(exchange)
                try:
                    await run_until_first_ends(exchange.run(), self._note_up(stream))
                finally:
                    self._exchanges.remove(exchange)
        except (grpc.aio.AioRpcError, LinkClosed) as error:
            if not self._sharded:
                raise
            reason = error.details() or error.code().name if isinstance(error, grpc.RpcError) else error
            raise LinkClosed(f"{peer}: {reason}") from None
        finally:
            link.close()

    async def _note_up(self, stream: Any) -> None:
        await stream.initial_metadata()
        self._down -= 1
        if not self._down:
            self._up()
        await asyncio.Event().wait()  # the exchange ends with the stream
