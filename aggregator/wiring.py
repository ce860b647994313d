"""The parts of an aggregator that reach tensors, and how they are connected: in this process, or in shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from aggregator.cluster_check import OwnLink
from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore
from aggregator.data_plane.plane import DataPlane, LocalDataPlane
from aggregator.optimizer_links.link import GradientLink, OptimizerLink, OptimizerLinkCallbacks
from aggregator.optimizer_links.local import LocalOptimizerLink
from aggregator.optimizer_links.remote import RemoteOptimizerLink
from aggregator.shards.client.data_plane import ShardedDataPlane
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.optimizer_link import ShardedOptimizerLink
from aggregator.shards.client.tensor_store import ShardedTensorStore
from aggregator.storage.job_queue import JobQueue
from aggregator.worker_sessions import WorkerSessions
from optimizer.engine import OptimizerEngine
from optimizer.tensor_store import TensorStore, TensorStoreCallbacks
from services.files.store import FileStore
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tensors.chunk_messages import TensorChunk
from services.timeouts import Timeouts
from services.transport.data.newest_weights import NewestWeights
from services.transport.security import Security


class Feed(Protocol):
    """Gives the core an input, with the chunk that arrived if one did."""

    def __call__(self, event: ev.Input, chunk: TensorChunk | None = None, /) -> None:
        """Give the core an input."""


class Wiring:
    """The link to the optimizer, the data plane, and what they need.

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
        on_failure: called on any thread with the error that ended the data plane.

    Attributes:
        link: the link to the optimizer.
        plane: the data plane.
        engine: the optimizer's engine in 2-tier; None in 3-tier.
        shards: the links to the shards; None without shards.
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
        self.shards: ShardGroup | None = None
        self.own_links: Sequence[OwnLink] = ()
        self.link: OptimizerLink
        self.plane: DataPlane
        if shards:
            self._use_shards(shards)
        else:
            self._use_this_process(optimizer)

    def _use_shards(self, addresses: Sequence[str]) -> None:
        """Keep payloads and the optimizer's tensors in other processes."""
        shards = ShardGroup(
            tuple(addresses),
            self._security,
            name=self._name,
            incarnation=self._incarnation,
            epoch=self._queue.epoch,
            cluster=self._queue.cluster,
            timeouts=self._timeouts,
        )
        metrics = self._metrics.optimizer
        link = ShardedOptimizerLink(
            self._make_engine(lambda callbacks: ShardedTensorStore(callbacks, shards, metrics)),
            shards,
            name=self._name,
            epoch=self._queue.epoch,
            connected=self._callbacks.connected,
            lost=self._callbacks.lost,
            message=self._callbacks.message,
            weights=lambda header: self._feed(ev.WeightsArrived(header)),
        )
        self.link, self.shards = link, shards
        self.own_links = [
            OwnLink(each, str(each).removeprefix("shard "), "shard", "/tiermesh.Shard/MeasureLink")
            for each in shards.links
        ]
        self.plane = ShardedDataPlane(
            shards,
            core=self._core,
            sessions=self._sessions,
            feed=self._feed,
            on_sum_finished=link.sum_finished,
            on_failure=self._on_failure,
            call_soon=asyncio.get_running_loop().call_soon,
        )

    def _use_this_process(self, optimizer: str | None) -> None:
        """Let all payloads go through this process."""
        link, newest = self._make_remote_link(optimizer) if optimizer else self._make_local_link()
        self.link = link
        self.plane = LocalDataPlane(
            core=self._core,
            newest=newest,
            sessions=self._sessions,
            metrics=self._metrics,
            feed=self._feed,
            link=link,
            on_failure=self._on_failure,
            shared_memory=self._shared_memory,
        )

    def _make_remote_link(self, optimizer: str) -> tuple[GradientLink, NewestWeights]:
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
        return link, NewestWeights()

    def _make_local_link(self) -> tuple[GradientLink, NewestWeights]:
        engine = self._make_engine()
        link = LocalOptimizerLink(engine, name=self._name, epoch=self._queue.epoch, callbacks=self._callbacks)
        return link, engine.newest  # workers are sent the chunks that the engine updates

    def _make_engine(
        self, make_tensor_store: Callable[[TensorStoreCallbacks], TensorStore] | None = None
    ) -> OptimizerEngine:
        self.engine = OptimizerEngine(
            name=self._name,
            incarnation=self._incarnation,
            state_dir=self._state_dir,
            files=self._files,
            metrics=self._metrics.optimizer,
            record=self._record.with_name(f"{self._record.name}.optimizer") if self._record else None,
            make_tensor_store=make_tensor_store,
            fence=self._queue.fenced,
        )
        return self.engine
