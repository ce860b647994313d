"""The aggregator's service: carries out what its core decides; serves workers (`tiermesh.Cluster`) and people.

All state is touched on the event loop alone; what happens to payloads is the data plane's (plane.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.job_report import Record
from aggregator.data_plane.plane import DataPlane, LocalDataPlane
from aggregator.jobs_service import JobsServicer
from aggregator.optimizer_link import (
    GradientLink,
    LocalOptimizerLink,
    OptimizerLink,
    OptimizerLinkEvents,
    RemoteOptimizerLink,
)
from aggregator.shards.client.data_plane import ShardedDataPlane
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.optimizer_link import ShardedOptimizerLink
from aggregator.shards.client.tensor_store import ShardedTensorStore
from aggregator.storage.job_queue import JobQueue, open_queue
from aggregator.storage.journal import Journal
from aggregator.storage.leadership import Leadership
from aggregator.worker_control import WorkerControl
from aggregator.worker_sessions import WorkerSessions
from optimizer.engine import OptimizerEngine
from optimizer.tensor_store import TensorStore, TensorStoreCallbacks
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import QUEUED, JobEvent, Wait
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.errors import TiermeshError
from services.instrumentation import timeline
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerBody
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics
from services.runtime.recording import make_core
from services.tensors.chunk_messages import Message, TensorChunk, check_chunk
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, Timeouts
from services.transport.http2.server import Handler
from services.transport.links import run_until_first_ends
from services.transport.newest_weights import NewestWeights
from services.transport.security import Security

log = logging.getLogger("tiermesh.aggregator")


class AggregatorService:
    """One aggregator, that leads.

    Args:
        name: of it, for people.
        state_dir: where the queue, and in 2-tier the checkpoints, live.
        optimizer: `HOST:PORT` of the optimizer; None: 2-tier, the optimizer runs inside.
        security: certificates to show and to believe.
        metrics: of this aggregator.
        record: file to record the core in; None: none.
        heartbeat_seconds: what all timeouts follow from.
        timeout_overrides: rungs of the ladder that are set by hand, in seconds.
        shared_memory: whether tensors may go through memory shared with a peer.
        shards: `HOST:PORT` of each process that payloads and the optimizer's tensors are in.
        queue: that of the state dir, whose epoch has been raised; None: both are done at the start.
    """

    service_names = ("tiermesh.Cluster", "tiermesh.Jobs")

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        optimizer: str | None,
        security: Security,
        metrics: AggregatorMetrics,
        record: Path | None = None,
        heartbeat_seconds: float = STANDARD_HEARTBEAT_SECONDS,
        timeout_overrides: Mapping[str, float] | None = None,
        shared_memory: bool = True,
        shards: Sequence[str] = (),
        queue: JobQueue | None = None,
    ) -> None:
        self.name = name
        self.metrics = metrics
        self.tensor_port = 0
        self._state_dir = state_dir
        self._optimizer = optimizer
        self._shard_addresses = tuple(shards)
        self._security = security
        self._record = record
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_overrides = dict(timeout_overrides or {})
        self._timeouts = Timeouts.from_heartbeat(heartbeat_seconds, timeout_overrides)
        self._shared_memory = shared_memory
        self._incarnation = uuid.uuid4().hex
        self._engine: OptimizerEngine | None = None
        self._stepped_seconds: float | None = (
            None  # when the step before was committed, if nothing came between
        )
        self._failed: asyncio.Future[None]
        self.core: AggregatorCore
        self.journal: Journal
        self.link: OptimizerLink
        self._given_queue = queue
        self._queue: JobQueue
        self._lead: Leadership
        self._sessions: WorkerSessions
        self._newest: NewestWeights
        self._plane: DataPlane
        self.shards: ShardGroup | None = None
        self._waits_told: dict[tuple[str, int, str], str | None] = {}  # the timeout that each has exceeded

    # ---- life ----

    async def start(self) -> None:
        """Take up the state folder under a new epoch.

        Raises:
            Refused: the state folder can't be used.
        """
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        if self._given_queue is None:
            self._queue = open_queue(self._state_dir, self._timeouts)
            self._queue.raise_epoch(self.name, self._timeouts.takeover)
        else:
            self._queue = self._given_queue
        epoch = self._queue.epoch
        self._lead = Leadership(self._queue, self._timeouts)
        records = [
            Record(job, spec_json, JobConfig.from_json(spec_json).plan(), fingerprint)
            for job, spec_json, fingerprint in self._queue.jobs()
        ]
        self.journal = Journal(self._state_dir / "logs")
        self.core = make_core(
            AggregatorCore,
            self._record,
            name=self.name,
            epoch=epoch,
            records=records,
            heartbeat_seconds=self._heartbeat_seconds,
            timeout_overrides=self._timeout_overrides,
            tiers=3 if self._optimizer else 2,
            shards=max(1, len(self._shard_addresses)),
        )
        self._sessions = WorkerSessions(epoch)
        if self._shard_addresses:
            self._take_shards(epoch)
        else:
            link = self._make_link(epoch)
            self.link = link
            self._plane = LocalDataPlane(
                core=self.core,
                newest=self._newest,
                sessions=self._sessions,
                metrics=self.metrics,
                feed=self.feed,
                link=link,
                failed=self._fail_later,
                shared_memory=self._shared_memory,
            )
        self._attendance = WorkerControl(self._sessions, self._plane, self.feed, self._timeouts.hello)
        self.metrics.set_epoch(epoch)
        self.metrics.set_leading(True)
        log.info("aggregator %s, epoch %d, %d tiers", self.name, epoch, self.core.tiers)

    def _optimizer_connected(self, name: str) -> None:
        self.feed(ev.OptimizerConnected(name))

    def _optimizer_lost(self, reason: str) -> None:
        self.feed(ev.OptimizerLost(reason))

    def _take_shards(self, epoch: int) -> None:
        """Payloads and the optimizer's tensors are in other processes."""
        shards = self.shards = ShardGroup(
            self._shard_addresses,
            self._security,
            name=self.name,
            incarnation=self._incarnation,
            epoch=epoch,
            timeouts=self._timeouts,
        )
        metrics = self.metrics.optimizer
        link = ShardedOptimizerLink(
            self._make_engine(metrics, lambda callbacks: ShardedTensorStore(callbacks, shards, metrics)),
            shards,
            name=self.name,
            epoch=epoch,
            connected=self._optimizer_connected,
            lost=self._optimizer_lost,
            message=self._optimizer_said,
            weights=lambda header: self.feed(ev.WeightsArrived(header)),
        )
        self.link = link
        self._plane = ShardedDataPlane(
            shards, core=self.core, sessions=self._sessions, feed=self.feed, finished=link.finished
        )

    def _make_engine(
        self,
        metrics: OptimizerMetrics,
        make_tensor_store: Callable[[TensorStoreCallbacks], TensorStore] | None = None,
    ) -> OptimizerEngine:
        self._engine = OptimizerEngine(
            name=self.name,
            incarnation=self._incarnation,
            state_dir=self._state_dir,
            metrics=metrics,
            record=self._record.with_name(f"{self._record.name}.optimizer") if self._record else None,
            make_tensor_store=make_tensor_store,
            fence=self._queue.fenced,
        )
        return self._engine

    def _make_link(self, epoch: int) -> GradientLink:
        events = OptimizerLinkEvents(
            connected=self._optimizer_connected,
            lost=self._optimizer_lost,
            message=self._optimizer_said,
            weights=self._weights_arrived,
        )
        if self._optimizer:
            self._newest = NewestWeights()
            return RemoteOptimizerLink(
                self._optimizer,
                self._security,
                name=self.name,
                incarnation=self._incarnation,
                epoch=epoch,
                events=events,
                heartbeat_seconds=self._heartbeat_seconds,
                shared_memory=self._shared_memory,
                count=self.metrics.change_shared_memory_links,
            )
        engine = self._make_engine(self.metrics.optimizer)
        self._newest = engine.newest  # what it updates is what workers are sent
        return LocalOptimizerLink(engine, name=self.name, epoch=epoch, events=events)

    async def run(self) -> None:
        """Serve until cancelled, or until something that must not fail has failed."""
        await run_until_first_ends(
            self.link.run(), self._tick(), self._beat(), self._keep_leading(), _wait(self._failed)
        )

    async def stop(self) -> None:
        """End all streams and threads; a checkpoint that is being written is finished first."""
        self._sessions.close_all("the aggregator stops")
        self.journal.close()
        self._plane.close()
        if self._engine is not None:
            await self._loop.run_in_executor(None, self._engine.close)
        await self._loop.run_in_executor(None, self._lead.close)
        self._queue.close()
        self.metrics.set_leading(False)

    async def _keep_leading(self) -> None:
        try:
            await self._lead.run()
        except TiermeshError as error:
            self._fail(error)  # at once: nothing that comes now is acted on
            raise

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.tick)
            self.feed(ev.Ticked())
            self.metrics.set_workers(len(self.core.members))
            self._name_waits(self.core.waits(time.monotonic()))
            if self.shards is not None:
                self.metrics.set_shards(sum(link.up for link in self.shards.links))
            queued = sum(record.job.state == QUEUED for record in self.core.records.values())
            self.metrics.set_queue_length(queued)
            self.metrics.set_standbys(len(self.standbys()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self._sessions.tell_all(pb.Heartbeat())

    def standbys(self) -> dict[str, float]:
        """Who stands by for this aggregator, and how many seconds ago each was heard."""
        return self._lead.standbys.silent_seconds(time.monotonic())

    def _name_waits(self, waits: Sequence[Wait]) -> None:
        """Show who is waited for, and log it once for each rung that a wait passes."""
        self.metrics.set_waits({each.peer: each.seconds for each in reversed(waits)})
        told, self._waits_told = self._waits_told, {}
        for each in waits:
            owed, rung = (each.peer, each.step, each.what), self._timeouts.longest_exceeded(each.seconds)
            self._waits_told[owed] = rung
            if rung and told.get(owed) != rung:
                log.warning(
                    "waits for %s %s: %s, bucket %d, for %.1f s (longer than `%s`)",
                    each.role, each.peer, each.what, each.bucket, each.seconds, rung,
                    extra={"job": each.job, "step": each.step},
                )  # fmt: skip

    def _fail_later(self, error: Exception) -> None:
        """From another thread: end the service with this error."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # ---- the core ----

    def feed(self, event: ev.Input, chunk: TensorChunk | None = None, message: Message | None = None) -> None:
        """Give the core an input and carry out what it decides.

        Args:
            event: what happened.
            chunk: that just arrived, from a worker or from an optimizer's process.
            message: of the weights that just arrived, as they came.
        """
        if self._failed.done():
            return  # whatever comes while the service ends is for its successor
        clock = Clock(time.monotonic(), time.time())
        sums: list[ev.SumEffect] = []
        try:
            self._lead.hold(clock.monotonic_seconds)
            for effect in self.core.handle(event, clock):
                match effect:
                    case ev.Keep() | ev.Drop() | ev.DropAll() | ev.Merge() | ev.Forward():
                        sums.append(effect)
                    case ev.StoreWeights():
                        self._plane.store(chunk, message, effect.elements)
                    case _:
                        self._carry_out(effect, clock)
        except Exception as error:  # a core or disk that failed leaves no state to go on with
            self._fail(error)
            return
        if sums:
            self._plane.submit(sums, chunk)
        if not isinstance(event, ev.ChunkArrived):  # a gradient brings nobody new weights
            self._plane.wake()

    def _carry_out(self, effect: ev.Effect, clock: Clock) -> None:
        match effect:
            case ev.ToWorker():
                session = self._sessions.get(effect.session)
                if session is not None:
                    if isinstance(effect.body, pb.Welcome):
                        effect.body.tensor_port = self.tensor_port
                        self._plane.invite(effect.session, effect.body)
                    session.tell(effect.body)
            case ev.ToOptimizer():
                self.link.tell(effect.body)
            case ev.Note():
                self._publish(effect, clock)
            case ev.CheckClosed():
                self.metrics.count_verification(effect.job, effect.outcome)
            case ev.SaveJob():
                self._queue.save(effect.job, effect.spec_json, effect.fingerprint)
            case ev.CloseWorker():
                session = self._sessions.get(effect.session)
                if session is not None:
                    session.mailbox.close(effect.reason, grpc.StatusCode.FAILED_PRECONDITION)

    def _publish(self, note: ev.Note, clock: Clock) -> None:
        event = JobEvent(
            job=note.job,
            seconds=clock.unix_seconds,
            kind=note.kind,
            text=note.text,
            grad_norm=note.grad_norm,
            learning_rate=note.learning_rate,
        )
        self.journal.publish(event)
        log.info("%s", note.text, extra={"job": note.job.id, "step": note.job.step})
        if note.kind == "step" and note.job.HasField("loss"):
            seconds = clock.monotonic_seconds - self._stepped_seconds if self._stepped_seconds else None
            self.metrics.record_step(note.job.id, step=note.job.step, loss=note.job.loss, seconds=seconds)
        self._stepped_seconds = clock.monotonic_seconds if note.kind == "step" else None
        if note.kind == "evaluation":
            self.metrics.set_validation_loss(note.job.id, note.job.validation_loss)

    def _optimizer_said(self, body: OptimizerBody) -> None:
        self.feed(ev.FromOptimizer(body))
        if isinstance(body, pb.Commit) and not self._failed.done():
            self.metrics.count_commit(body.job, applied=body.applied)

    def _weights_arrived(
        self, header: ChunkHeader, chunk: TensorChunk | None, message: Message | None
    ) -> None:
        if chunk is not None:
            elements = self.core.expected_elements(header.job)
            if elements is None:
                return  # of a job that is over
            check_chunk(chunk, elements, self.core.wire_type(WEIGHTS))
        timeline.mark("from optimizer", "weights", header.step, chunk=header.index)
        self.feed(ev.WeightsArrived(header), chunk, message)

    # ---- workers ----

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """For the server; the data stream is given and taken as raw messages."""
        cluster = grpc.method_handlers_generic_handler(
            "tiermesh.Cluster",
            {
                "Attend": grpc.stream_stream_rpc_method_handler(
                    self._attend, response_serializer=encode_with_checksum
                ),
                "Exchange": grpc.stream_stream_rpc_method_handler(self._serve_exchange),
            },
        )
        return [cluster, JobsServicer(self).handlers()]

    def tensor_methods(self) -> dict[str, Handler]:
        """For the tensor port."""
        return {"/tiermesh.Cluster/Exchange": lambda stream: self._serve_exchange(None, stream)}

    async def _serve_exchange(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._plane.serve(requests, context)

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._attendance.serve(context)


async def _wait(future: asyncio.Future[None]) -> None:
    await future
