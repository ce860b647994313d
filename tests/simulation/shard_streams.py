"""Data streams of a simulated worker to the shards of its aggregator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from protos.tensors_pb2 import ChunkHeader
from services.tensors.stripes import Stripe
from tests.simulation.links import Link, is_end
from tests.simulation.simulated_shard import SimulatedShard

if TYPE_CHECKING:
    from tests.simulation.simulated_worker import SimulatedWorker


class ShardStreams:
    """The data streams of one connection to an aggregator, one to each shard. If one ends, the connection does.

    Args:
        worker: this end.
        link: the worker's connection to its aggregator.
        count: number of shards.
    """

    def __init__(self, worker: SimulatedWorker, link: Link, count: int) -> None:
        self._worker = worker
        self._link = link
        self._streams: dict[Stripe, Link] = {}
        for index in range(count):
            self._open(Stripe(index, count))

    def _open(self, stripe: Stripe) -> None:
        worker, shard = self._worker, self._worker.cluster.shards[stripe.index]
        if not shard.alive:
            worker.later(worker.cluster.rng.random(), self._lost, "a shard can't be reached")
            return
        stream = self._streams[stripe] = Link(worker.cluster, self._link.session, pinged=True)
        stream.connect(
            up_control=lambda first, text: self._announced(stream, shard, first, text),
            up_data=lambda header, payload: self._chunk_arrived(stream, shard, header, payload),
            down_control=lambda first, text: stream.closed(text) if is_end(first) else None,
            down_data=lambda header, payload: self._weights_arrived(stream, shard, header, payload),
            lost_above=lambda reason: shard.stream_lost(stream, reason),
            lost_below=self._lost,
            ends=(shard, worker),
        )
        worker.cluster.links.append(stream)
        stream.up_control.send(None, worker.incarnation)

    @staticmethod
    def _announced(stream: Link, shard: SimulatedShard, first: Any, text: str) -> None:
        if is_end(first):
            if shard.alive:
                stream.ended(text)
        else:
            shard.open_stream(stream, text)

    def _chunk_arrived(self, stream: Link, shard: SimulatedShard, header: ChunkHeader, payload: Any) -> None:
        shard.chunk_arrived(stream, header, payload)
        self._worker.pump()

    def _weights_arrived(
        self, stream: Link, shard: SimulatedShard, header: ChunkHeader, payload: int
    ) -> None:
        self._worker.take_weights(self._link, header, payload)
        if shard.alive:
            shard.pump(stream)

    def _lost(self, reason: str) -> None:
        if self._worker.alive and self._link.down_control.open:
            self._link.abandon(f"a shard's data stream ended: {reason}")

    def __iter__(self) -> Iterator[tuple[Stripe, Link]]:
        """Return the chunks of each shard, and the stream to it."""
        return iter(list(self._streams.items()))

    def abandon(self, reason: str) -> None:
        """Give all streams up."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            if stream.up:
                stream.abandon(reason)
