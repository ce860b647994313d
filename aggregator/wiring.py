"""The parts of an aggregator that reach tensors, and how they are connected: in this process, or in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from aggregator.cluster_check import OwnLink
from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore
from aggregator.core.scheduling.host_memories import ToldMemory
from aggregator.data_plane import DataPlane
from aggregator.optimizer_links.in_process import InProcessOptimizerLink
from aggregator.optimizer_links.link import OptimizerLink, OptimizerLinkCallbacks
from aggregator.optimizer_links.remote import RemoteOptimizerLink
from aggregator.shards.link import ShardLink
from aggregator.storage.job_queue import JobQueue
from optimizer.engine import OptimizerEngine
from plane.group import PlaneGroup
from plane.link import LocalPlane
from plane.plane import Plane, PlaneOwner
from plane.streams.worker_sessions import WorkerSessions
from protos import plane_pb2 as pb
from protos.cluster_pb2 import Hello
from protos.tensors_pb2 import ChunkHeader
from services.files.store import FileStore
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.handover import Handover
from services.runtime.host_memory import read_host_memory
from services.tensors.chunk_messages import Message as ChunkMessage
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.security import Security


class Feed(Protocol):
    """Gives the core an input, with the chunk that arrived if one did."""

    def __call__(self, event: ev.Input, chunk: TensorChunk | None = None, /) -> None:
        """Give the core an input."""


class Wiring:
    """The link to the optimizer, the aggregator's plane, and what they need.

    Args:
        name: the aggregator's name.
        incarnation: the id of its start.
        state_dir: the folder of checkpoints in 2-tier.
        queue: the queue, whose epoch was raised for this aggregator.
        optimizer: `HOST:PORT` of the optimizer; None in 2-tier.
        shards: `HOST:PORT` of each shard; empty if payloads and tensors are in this process.
        security: the certificates to use.
        metrics: the aggregator's metrics.
        files: the files that messages refer to.
        record: the file to record the core's calls in; None for no recording.
        heartbeat_seconds: the heartbeat that all timeouts follow from.
        timeouts: the cluster's timeouts.
        shared_memory: whether tensors may go through memory shared with a peer.
        core: the aggregator's core.
        sessions: the sessions of the connected workers.
        feed: gives the core an input.
        callbacks: what the link to the optimizer calls.
        on_failure: called on any thread with the error that ended the plane.

    Attributes:
        link: the link to the optimizer.
        plane: adds and sends tensors, as the core orders.
        put_weights: gives the plane a chunk of weights from the optimizer in 3-tier; None if planes make them.
        engine: the optimizer's engine in 2-tier; None in 3-tier.
        shards: the links to the shards; empty without shards.
        own_links: links to other roles that this process opens, for `ClusterCheck`.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: str,
        state_dir: Path,
        queue: JobQueue,
        optimizer: str | None,
        shards: Sequence[str],
        security: Security,
        metrics: AggregatorMetrics,
        files: FileStore,
        record: Path | None,
        heartbeat_seconds: float,
        timeouts: Timeouts,
        shared_memory: bool,
        core: AggregatorCore,
        sessions: WorkerSessions,
        feed: Feed,
        callbacks: OptimizerLinkCallbacks,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self._state_dir = state_dir
        self._queue = queue
        self._security = security
        self._metrics = metrics
        self._files = files
        self._record = record
        self._heartbeat_seconds = heartbeat_seconds
        self._timeouts = timeouts
        self._shared_memory = shared_memory
        self._core = core
        self._sessions = sessions
        self._feed = feed
        self._callbacks = callbacks
        self._on_failure = on_failure
        self.engine: OptimizerEngine | None = None
        self.shards: Sequence[ShardLink] = ()
        self.own_links: Sequence[OwnLink] = ()
        self.put_weights: Callable[[TensorChunk, ChunkMessage | None, int], None] | None = None
        self.link: OptimizerLink
        self.plane: DataPlane
        if optimizer:
            self._use_remote_optimizer(optimizer)
        elif shards:
            self._use_shards(shards)
        else:
            plane = LocalPlane(self._make_plane, self._on_failure)
            self._use_own_optimizer(PlaneGroup([plane], self._timeouts.beat))

    def _make_plane(self, owner: PlaneOwner) -> Plane:
        return Plane(
            owner,
            epoch=self._queue.epoch,
            stripe=Stripe(0, 1),
            incarnation=self._incarnation,
            metrics=self._metrics,
            update_metrics=None,
            shared_memory=self._shared_memory,
        )

    def _use_shards(self, addresses: Sequence[str]) -> None:
        """Keep payloads and the optimizer's tensors in other processes."""
        self.shards = [
            ShardLink(
                address,
                Stripe(index, len(addresses)),
                security=self._security,
                name=self._name,
                incarnation=self._incarnation,
                epoch=self._queue.epoch,
                cluster=self._queue.cluster,
                timeouts=self._timeouts,
            )
            for index, address in enumerate(addresses)
        ]
        self.own_links = [
            OwnLink(each, str(each).removeprefix("shard "), "shard", "/tiermesh.Shard/MeasureLink")
            for each in self.shards
        ]
        self._use_own_optimizer(PlaneGroup(self.shards, self._timeouts.beat))

    def _use_own_optimizer(self, planes: PlaneGroup) -> None:
        """Run the optimizer in this process, with its tensors in planes."""
        self.engine = OptimizerEngine(
            name=self._name,
            state_dir=self._state_dir,
            files=self._files,
            metrics=self._metrics.optimizer,
            record=self._record.with_name(f"{self._record.name}.optimizer") if self._record else None,
            planes=planes,
            fence=self._queue.fenced,
        )
        self.link = link = InProcessOptimizerLink(
            self.engine, planes, name=self._name, epoch=self._queue.epoch, callbacks=self._callbacks
        )
        self.plane = self._make_data_plane(planes, link.sums_finished)

    def _use_remote_optimizer(self, optimizer: str) -> None:
        """Send sums to an optimizer in another process."""
        link = RemoteOptimizerLink(
            optimizer,
            self._security,
            name=self._name,
            incarnation=self._incarnation,
            epoch=self._queue.epoch,
            cluster=self._queue.cluster,
            callbacks=self._callbacks,
            heartbeat_seconds=self._heartbeat_seconds,
            files=self._files,
            shared_memory=self._shared_memory,
            count=self._metrics.change_shared_memory_links,
        )
        self.own_links = [OwnLink(link, optimizer, "optimizer", "/tiermesh.Optimizer/MeasureLink")]
        prepared = Handover(link.send)

        def send_sum(header: ChunkHeader, values: Float32Array) -> None:
            """Hand a finished sum over to the event loop; called on the thread of sums."""
            elements = self._core.expected_elements(header.job)
            if elements is not None:  # None if the job is over
                prepared.put(link.prepare(header, values, elements))

        plane = LocalPlane(
            self._make_plane, self._on_failure, send_sum=send_sum, wait_to_send=link.wait_for_room
        )
        self.link = link
        self.plane = self._make_data_plane(PlaneGroup([plane], self._timeouts.beat), lambda order: None)
        self.put_weights = plane.put_weights

    def read_memories(self, optimizer: Hello | None) -> Iterator[ev.MemoryTold]:
        """Yield the memory of the hosts of aggregator, optimizer and shards.

        Args:
            optimizer: Hello of an optimizer in another process; None if it is in this one.
        """
        own = read_host_memory()
        told = ToldMemory(own.host, own.total_bytes, own.free_bytes)
        yield ev.MemoryTold("aggregator", self._name, told)
        for role, peer in self._peers(optimizer):
            told = ToldMemory(peer.host, peer.memory_bytes, peer.memory_free_bytes)
            yield ev.MemoryTold(role, peer.name, told)

    def read_features(self, optimizer: Hello | None) -> dict[str, tuple[str, ...]]:
        """Return the features of optimizer and shards in other processes, by peer as people call it."""
        return {f"{role} {peer.name}": tuple(peer.features) for role, peer in self._peers(optimizer)}

    def _peers(self, optimizer: Hello | None) -> Iterator[tuple[str, Hello]]:
        """Yield the role and the Hello of optimizer and shards in other processes."""
        for role, peer in [("optimizer", optimizer), *(("shard", each.hello) for each in self.shards)]:
            if peer is not None:
                yield role, peer

    def _make_data_plane(
        self, planes: PlaneGroup, on_sums_finished: Callable[[pb.FinishSum], None]
    ) -> DataPlane:
        return DataPlane(
            planes,
            core=self._core,
            sessions=self._sessions,
            feed=self._feed,
            on_sums_finished=on_sums_finished,
            on_failure=self._on_failure,
            shards=self.shards,
        )
