"""The aggregator's service: feeds its core, and serves workers and users.

All state here is used on the event loop alone. Payloads are the plane's business (plane/plane.py), other effects of the
core that of effects.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from aggregator.broken_jobs import JobsCrashed, describe_crash, read_stored
from aggregator.cluster_check import ClusterCheck
from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.cluster_status import find_waits, make_status
from aggregator.core.job_report import Record
from aggregator.core.retention import Limits, Part
from aggregator.core.succession import EpochBehind
from aggregator.data_folder import DataFolder
from aggregator.downloads import Downloads
from aggregator.effects import EffectRunner
from aggregator.job_needs import find_needs
from aggregator.job_register import JobRegister
from aggregator.job_starts import JobStarts
from aggregator.jobs_service import JobsServicer
from aggregator.notifications.targets import TargetFile
from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from aggregator.pruner import Pruner
from aggregator.reporting import DiskWatch, EventPublisher, WaitReporter, report_low_disk, report_state
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.journal import Journal
from aggregator.storage.leadership import Leadership
from aggregator.stored_checkpoints import StoredCheckpoints, restore_layout
from aggregator.uploads import ROLES_BYTES, Uploads
from aggregator.wiring import Wiring
from aggregator.worker_control import WorkerControl
from plane.streams.worker_sessions import WorkerSessions
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import ClusterStatus, Connection
from protos.tensors_pb2 import WEIGHTS
from services.caps import GB, MB, Caps
from services.errors import TiermeshError
from services.files.limits import TransferLimits
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.instrumentation import timeline
from services.printable import printable_path
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerBody
from services.protocol.hello import HelloExpectations, Role, own_version
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.recording import make_core
from services.tasks import start_awaited
from services.tensors.chunk_messages import Message, TensorChunk, check_chunk
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, Timeouts
from services.transport.access.permissions import FILES_OF_AGGREGATOR
from services.transport.http2.server import Handler
from services.transport.links import run_until_first_ends
from services.transport.security import Security

log = logging.getLogger("tiermesh.aggregator")


class AggregatorService:
    """An aggregator that leads. It is constructed on the event loop.

    Args:
        state_dir: the folder of the queue and, in 2-tier, of the checkpoints.
        optimizer: `HOST:PORT` of the optimizer; None in 2-tier, where the optimizer runs in this process.
        data_dir: the folder of files that workers may read by their SHA-256; None for none.
        record: the file to record the core's calls in; None for no recording.
        heartbeat_seconds: the heartbeat that all timeouts follow from.
        timeout_overrides: timeouts set by hand, in seconds.
        shared_memory: whether tensors may go through memory shared with a peer.
        shards: `HOST:PORT` of each shard; empty if payloads and tensors are in this process.
        queue: the state folder's queue, whose epoch was raised for this aggregator.
        tensor_port: the port of data streams; 0 for none.
        caps: the caps on what people can take.
        retention: limits on what ended jobs leave, by what goes.
        targets: the targets of jobs' `notify`; None for none.

    Attributes:
        register: all jobs, for people.
        files: the files that messages refer to.
        pruner: removes what ended jobs have left.
        stored: the checkpoints on the optimizer's disk.
        starts: finds the checkpoints that new jobs start from.
        check: checks all meshes and links.
    """

    service_names = ("tiermesh.Cluster", "tiermesh.Jobs", "tiermesh.Files")

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        queue: JobQueue,
        optimizer: str | None,
        security: Security,
        metrics: AggregatorMetrics,
        caps: Caps,
        tensor_port: int = 0,
        data_dir: Path | None = None,
        record: Path | None = None,
        heartbeat_seconds: float = STANDARD_HEARTBEAT_SECONDS,
        timeout_overrides: Mapping[str, float] | None = None,
        shared_memory: bool = True,
        shards: Sequence[str] = (),
        retention: Mapping[Part, Limits] | None = None,
        targets: TargetFile | None = None,
    ) -> None:
        epoch = queue.epoch
        self._name = name
        self._queue = queue
        self._metrics = metrics
        self._timeouts = Timeouts.from_heartbeat(heartbeat_seconds, timeout_overrides)
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._tiers = 3 if optimizer else 2
        self._leadership = Leadership(queue, self._timeouts)
        self.journal = Journal(
            state_dir / "logs", metrics.count_lost_log_lines, caps.log_mb * MB, metrics.count_cap_reached
        )
        self._data_folder = DataFolder(data_dir, state_dir / "data-dir.json") if data_dir else None
        self.files = FileStore(
            state_dir / "files",
            max_store_bytes=caps.upload_gb * GB + ROLES_BYTES,
            library=self._data_folder,
        )
        self._uploads = Uploads(state_dir / "uploads.json", self.files, caps, metrics.count_cap_reached)
        records = []
        for job, spec_json in queue.live_jobs():
            stored = read_stored(spec_json, tiers=self._tiers, shards=len(shards))
            self.files.keep_inputs(job.id, stored.inputs)
            records.append(Record(job, spec_json, stored.plan, stored.needs))
        targets = targets or TargetFile(None)
        self._events = EventPublisher(
            state_dir, queue, lambda job: self.core.jobs.records.get(job), self.journal, metrics, targets
        )
        self.history, self.notify_targets = self._events.history, targets
        self._disk_watch = DiskWatch(state_dir)
        self._wait_reporter = WaitReporter(metrics, self._timeouts)
        self.core = make_core(
            AggregatorCore,
            record,
            name=name,
            epoch=epoch,
            records=records,
            heartbeat_seconds=heartbeat_seconds,
            timeout_overrides=dict(timeout_overrides or {}),
            tiers=self._tiers,
            max_parameters=caps.parameters,
            shards=max(1, len(shards)),
            max_running_jobs=caps.running_jobs,
            max_workers_per_person=caps.workers_per_person,
        )
        self._downloads = Downloads(caps.download_mb_per_second, metrics.count_cap_reached)
        self.register = JobRegister(
            queue,
            self.core.jobs.records,
            self.feed,
            caps,
            self.files,
            lambda: self.core.assignments.waits,
            partial(find_needs, tiers=self._tiers, shards=len(shards)),
        )
        self._sessions = WorkerSessions(epoch)
        self._wiring = Wiring(
            name=name,
            incarnation=uuid.uuid4().hex,
            state_dir=state_dir,
            queue=queue,
            optimizer=optimizer,
            shards=shards,
            security=security,
            metrics=metrics,
            files=self.files,
            record=record,
            heartbeat_seconds=heartbeat_seconds,
            timeouts=self._timeouts,
            shared_memory=shared_memory,
            core=self.core,
            sessions=self._sessions,
            feed=self.feed,
            callbacks=OptimizerLinkCallbacks(
                connected=self._optimizer_connected,
                lost=lambda reason: self.feed(ev.OptimizerLost(reason)),
                message=self._optimizer_message,
                weights=self._weights_arrived,
            ),
            on_failure=self._fail_later,
        )
        self._link, self._plane = self._wiring.link, self._wiring.plane
        self.stored = StoredCheckpoints(self._link)
        self.starts = JobStarts(queue, self.stored)
        self.pruner = Pruner(
            queue=queue,
            journal=self.journal,
            history=self.history,
            stored=self.stored,
            live=self.core.jobs.records,
            metrics=metrics,
            retention=retention or {},
            grace_seconds=self._timeouts.follow,
            remove_tracking=self._events.tracking.remove,
        )
        self._effects = EffectRunner(
            queue=queue,
            files=self.files,
            sessions=self._sessions,
            plane=self._plane,
            link=self._link,
            events=self._events,
            metrics=metrics,
            tensor_port=tensor_port,
            feed=self.feed,
            on_job_ended=self.pruner.wake,
        )
        self.check = ClusterCheck(
            name=name,
            sessions=self._sessions,
            shards=shards,
            own_links=self._wiring.own_links,
            security=security,
            shared_memory=shared_memory,
            members=self.core.members,
            feed=self.feed,
        )
        self._worker_control = WorkerControl(
            self._sessions,
            self._plane,
            self.feed,
            self.files,
            self.core.awaits_description,
            HelloExpectations(
                "aggregator",
                Role.WORKER,
                epoch,
                cluster=queue.cluster,
                state_dir=printable_path(state_dir),
            ),
            on_newer_epoch=lambda peer, seen: self._fail(EpochBehind(peer, seen)),
            take_report=self.check.take_report,
            hello_seconds=self._timeouts.hello,
        )
        metrics.set_epoch(epoch)
        metrics.set_leading(True)
        log.info("aggregator %s, epoch %d, %d tiers", name, epoch, self.core.tiers)

    def _optimizer_connected(self, name: str, hello: pb.Hello | None) -> None:
        for told in self._wiring.read_memories(hello):
            self.feed(told)
        self.feed(ev.OptimizerConnected(name, self._wiring.read_features(hello)))
        self.pruner.wake()

    async def run(self) -> None:
        """Serve until cancelled, or until the core, the disk or the leadership fails.

        Raises:
            JobsCrashed: an unexpected error happened while jobs ran; nothing in memory can be trusted.
        """
        try:
            await self._serve()
        except (TiermeshError, OSError):
            raise
        except Exception as error:
            self._fail(error)  # so that no later input is acted on
            if not self.core.runs:
                raise
            steps = {job: run.job.step for job, run in self.core.runs.items()}
            crash = JobsCrashed(steps, describe_crash(error))
            log.error("%s", crash, exc_info=error)
        else:
            return
        raise crash  # outside of the handler, so that no traceback keeps this service in memory

    async def _serve(self) -> None:
        """Serve until cancelled; then save the weights, while the links to shards are up."""
        serving = start_awaited(
            run_until_first_ends(
                self._link.run(),
                self._tick(),
                self._beat(),
                self._keep_leading(),
                self.pruner.run(),
                self._keep_indexing(),
                self._until_failed(),
            )
        )
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if self._wiring.engine is not None and not self._failed.done():
                await self._wiring.engine.save_weights()
            raise
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def note_crash(self, crash: JobsCrashed) -> None:
        """Put a crash into the records of the jobs that ran, so that a job that causes it again and again is set aside.

        Raises:
            TiermeshError: it can't be written.
        """
        text = f"the aggregator failed while it ran this job, and starts again from disk: {crash.reason}"
        for job in self._queue.note_crash(crash.steps, crash.reason):
            self._events.publish(ev.Note("state", text, job), Clock(time.monotonic(), time.time()))

    async def stop(self) -> None:
        """End all streams and threads, after finishing a checkpoint that is being written."""
        self.feed(ev.Stopping())
        self._events.notifier.stop_telling()
        self._sessions.close_all("the aggregator stops")
        self.journal.close()
        self.history.close()
        self._plane.close()
        if self._wiring.engine is not None:
            await asyncio.to_thread(self._wiring.engine.close)
        await asyncio.to_thread(self._events.close)
        await asyncio.to_thread(self._leadership.close)
        self._queue.close()
        self._metrics.set_leading(False)

    async def _until_failed(self) -> None:
        await self._failed

    async def _keep_leading(self) -> None:
        try:
            await self._leadership.run()
        except TiermeshError as error:
            self._fail(error)  # at once, so that no later input is acted on
            raise

    async def _keep_indexing(self) -> None:
        """Index `--data-dir` until cancelled."""
        if self._data_folder is not None:
            await self._data_folder.run()
        else:
            await asyncio.Event().wait()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.tick)
            self.feed(ev.Ticked())
            report_state(self.core, self._metrics)
            report_low_disk(self._disk_watch, self.core, self._events)
            self._wait_reporter.report(find_waits(self.core, time.monotonic()))
            if self._wiring.shards:
                self._metrics.set_shards(sum(link.is_up for link in self._wiring.shards))
            self._metrics.set_standbys(len(self._silent_seconds_of_standbys()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self._sessions.send_order_to_all(pb.Heartbeat(sent_seconds=time.monotonic()))

    def _silent_seconds_of_standbys(self) -> dict[str, float]:
        return self._leadership.standbys.silent_seconds(time.monotonic())

    def _fail_later(self, error: Exception) -> None:
        """End the service with this error; may be called on any thread."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # ---- the core ----

    def feed(self, event: ev.Input, chunk: TensorChunk | None = None, message: Message | None = None) -> None:
        """Give the core an input and carry out what it decides.

        Args:
            event: the input.
            chunk: the chunk that just arrived from a worker or from an optimizer in another process.
            message: the message that the chunk of weights came in.
        """
        if self._failed.done():
            return  # the service is ending; peers will send this again to its successor
        clock = Clock(time.monotonic(), time.time())
        orders: list[ev.PlaneOrder] = []
        try:
            self._leadership.check_leading(clock.monotonic_seconds)
            for effect in self.core.handle(event, clock):
                match effect:
                    case ev.StoreWeights():
                        assert chunk is not None and self._wiring.put_weights is not None
                        self._wiring.put_weights(chunk, message, effect.elements)
                    case _ if isinstance(effect, ev.PlaneOrder):
                        orders.append(effect)
                    case _:
                        self._effects.carry_out(effect, clock)
        except Exception as error:  # after a failure of the core or the disk, the state can't be trusted
            self._fail(error)
            return
        if orders:
            self._plane.submit(orders)

    def _optimizer_message(self, body: OptimizerBody) -> None:
        match body:
            case pb.CheckpointWritten() | pb.CheckpointMissed() if body.job not in self.core.jobs.records:
                self._late_checkpoint(body)
                return
        self.feed(ev.FromOptimizer(body))
        if isinstance(body, pb.Commit) and not self._failed.done():
            self._metrics.count_commit(body.job, applied=body.applied)

    def _late_checkpoint(self, outcome: pb.CheckpointWritten | pb.CheckpointMissed) -> None:
        """Take the outcome of a checkpoint of a job that has ended."""
        try:
            job = self._queue.find(outcome.job)
        except TiermeshError as error:
            self._fail(error)
            return
        if job is not None:
            self.feed(ev.LateCheckpoint(job, outcome))

    def _weights_arrived(self, chunk: TensorChunk, message: Message | None) -> None:
        elements = self.core.expected_elements(chunk.header.job)
        if elements is None:
            return  # its job is over
        check_chunk(chunk, elements, self.core.wire_type(chunk.header.job, WEIGHTS))
        header = chunk.header
        timeline.mark("from optimizer", "weights", header.step, job=header.job, chunk=header.index)
        self.feed(ev.WeightsArrived(chunk.header), chunk, message)

    # ---- users ----

    def status(self) -> ClusterStatus:
        """Return the cluster's current status."""
        status = make_status(self.core, time.monotonic())
        status.shards.extend(link.status() for link in self._wiring.shards)
        status.leader, status.version = self._name, own_version()
        connections = self._worker_control.connections()
        for worker in status.workers:
            worker.connection.MergeFrom(connections.get(worker.incarnation, Connection()))
        optimizer = self._link.connection()
        if optimizer is not None:
            status.optimizer_connection.CopyFrom(optimizer)
        for name, seconds in self._silent_seconds_of_standbys().items():
            status.standbys.add(name=name, seconds_since_heard=seconds)
        return status

    # ---- workers ----

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the gRPC handlers; the data stream's messages are passed on undecoded."""
        cluster = grpc.method_handlers_generic_handler(
            "tiermesh.Cluster",
            {
                "Attend": grpc.stream_stream_rpc_method_handler(
                    self._attend, response_serializer=encode_with_checksum
                ),
                "Exchange": grpc.stream_stream_rpc_method_handler(self._serve_exchange),
                "MeasureLink": grpc.stream_stream_rpc_method_handler(self._serve_measure_link),
            },
        )
        return [
            cluster,
            JobsServicer(self, self._metrics.count_cap_reached).handlers(),
            FilesServicer(
                self.files,
                FILES_OF_AGGREGATOR,
                limits=TransferLimits(self._timeouts),
                admission=self._uploads,
                checkpoints=partial(self._downloads.open_reader, self.stored),
                restore=partial(restore_layout, self.stored, self.files, self.core.runs),
            ).handlers(),
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """Return the handlers of the tensor port, by method."""
        return {
            "/tiermesh.Cluster/Exchange": lambda stream: self._serve_exchange(None, stream),
            "/tiermesh.Cluster/MeasureLink": lambda stream: self._serve_measure_link(None, stream),
        }

    async def _serve_exchange(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._plane.serve(context)

    async def _serve_measure_link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self.check.serve(context)

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._worker_control.serve(context)
