"""The worker's service: keeps the streams to its aggregator open and carries out the effects of its core.

The core and all bookkeeping run on the event loop, the mesh on the device thread. Tensors move in `plane/`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import grpc

from plane.streams.data_streams import DataStreamConnector
from plane.worker_plane import WorkerPlane
from protos import cluster_pb2 as pb
from services.config.job import JobConfig
from services.errors import Refusal, Refused, TiermeshError
from services.pipeline.exchange import ArraySizes
from services.pipeline.row_ids import row_number
from services.pipeline.split import StageRun
from services.protocol.bounds import MessageTooLarge
from services.protocol.envelope import CheckOrder, CheckReport, WorkerBody, unwrap, wrap
from services.protocol.hello import check_welcome
from services.runtime.cluster_identity import ClusterIdentity, StateDirUse
from services.runtime.host_memory import read_host_memory
from services.runtime.metrics import WorkerMetrics
from services.runtime.process import make_state_dir
from services.tensors.chunk_messages import TensorChunk
from services.timeouts import Timeouts
from services.transport.addresses import AddressRotation
from services.transport.backoff import Backoff
from services.transport.control.attend_client import AttendMethod, LinkEnd, OpenLink, keep_attending
from services.transport.control.heartbeats import Heartbeats
from services.transport.control.measurements import HeartbeatAnswers
from services.transport.http2.server import Handler
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed
from services.transport.mailbox import Mailbox
from services.transport.obstacles import AGGREGATOR
from services.transport.security import Security
from services.transport.server import open_channel
from worker.cluster_check import NEIGHBOURS_METHOD, ClusterCheck, NeighbourCheck
from worker.code_cache import CodeCache
from worker.compute_process import TRAINING_STEP, spawner
from worker.core import events as ev
from worker.core.worker import WorkerCore
from worker.device_thread import DeviceThread
from worker.file_exchange import FileExchange, ModelFiles
from worker.job_inputs import JobInputs
from worker.job_on_mesh import JobBuilder
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.row_links import RowLinks
from worker.pipeline.streams import Sharing
from worker.row_exchange import RowExchange

log = logging.getLogger("tiermesh.worker")

_Link: TypeAlias = OpenLink[pb.WorkerMessage, pb.WorkerCommand, pb.Welcome]
_ATTEND = AttendMethod(
    "/tiermesh.Cluster/Attend",
    pb.WorkerCommand,
    unwrap,
    pb.Welcome,
    AGGREGATOR,
)


class WorkerService:
    """The service of one worker.

    Args:
        name: stable name of the worker, for people.
        aggregators: `HOST:PORT` of the aggregator and of its standbys.
        security: the worker's certificate, and the authorities whose certificates it trusts.
        data_dir: folder that is searched for corpora and tokenizers that are missing at the job's path; None for none.
        metrics: metrics of this worker.
        state_dir: folder where the worker keeps which cluster it belongs to; None: it keeps nothing.
        cache_dir: folder of the inputs that were read from the aggregator; None: none are read.
        cache_bytes: largest size of these files.
        allowed_models: installed code of users' own models that jobs may name.
        accepts_code: whether code that is sent with jobs may be imported.
        shared_memory: whether tensors may travel through memory shared with a peer.
        make_step: factory of a job's training step, as `module:name`.
        hello_seconds: maximum wait for an aggregator's Welcome.
        pipeline_host: host at which other workers reach this one; empty for the one that the aggregator sees.
    """

    service_names: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        name: str,
        aggregators: Sequence[str],
        security: Security,
        data_dir: Path | None,
        metrics: WorkerMetrics,
        state_dir: Path | None = None,
        cache_dir: Path | None = None,
        cache_bytes: int = 1 << 62,
        allowed_models: Collection[str] = (),
        accepts_code: bool = False,
        shared_memory: bool = True,
        make_step: str = TRAINING_STEP,
        hello_seconds: float = HELLO_SECONDS,
        pipeline_host: str = "",
    ) -> None:
        self.name = name
        self._hello_seconds = hello_seconds
        self._shared_memory = shared_memory
        self._aggregators = AddressRotation(aggregators)
        self._security = security
        code = CodeCache(cache_dir, allowed_models, accepts_code=accepts_code)
        self._builder = JobBuilder(spawner(name, make_step), data_dir, code)
        self._inputs = JobInputs(name, data_dir, cache_dir, cache_bytes, accepts_code=accepts_code)
        self._metrics = metrics
        self._incarnation = uuid.uuid4().hex
        self._neighbour_check = NeighbourCheck(has_job=lambda: self._core.job is not None)
        self._row_links = RowLinks(
            name,
            self._incarnation,
            security,
            sharing=Sharing(shared_memory, metrics.change_shared_memory_links),
            count_sent=metrics.count_sent_to_stages,
        )
        self._pipeline_host, self._pipeline_port = pipeline_host, 0
        self._core = WorkerCore(name=name)
        self._state_dir = state_dir
        self._use = ExitStack()
        self._identity: ClusterIdentity | None = None
        self._mailbox: Mailbox[pb.WorkerMessage] = Mailbox()
        self._answers = HeartbeatAnswers()
        self._backoff = Backoff()
        self._plane = WorkerPlane(
            DataStreamConnector("/tiermesh.Cluster/Exchange", security),
            shared_memory=shared_memory,
            incarnation=self._incarnation,
            arrived=lambda chunk: self._feed(ev.WeightsArrived(chunk.header), chunk),
            opened=self._backoff.reset,
            metrics=metrics,
        )
        self._was_welcome = False  # on the current connection
        self._stall_seconds = math.inf  # the aggregator's limit

    # ---- lifecycle ----

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return no handlers: a worker serves only health and reflection."""
        return []

    def tensor_methods(self) -> Mapping[str, Handler]:
        """Return the handlers of the tensor port: arrays of other workers, and checks of their links to this one."""
        return {**self._row_links.handlers(), NEIGHBOURS_METHOD: self._neighbour_check.serve}

    async def start(self, tensor_port: int = 0) -> None:
        """Start the device thread.

        Args:
            tensor_port: port for the other workers of a pipeline; 0 for none.
        """
        self._pipeline_port = tensor_port
        self._loop = asyncio.get_running_loop()
        if self._state_dir is not None:
            self._open_identity(self._state_dir)
        self._device = DeviceThread(
            self._feed_from_device,
            self._metrics,
            self._builder,
            sums=self._plane.sums,
            open_exchange=self._open_exchange,
        )
        self._files = FileExchange(self._feed, self._device.build, self._inputs)
        self._check = ClusterCheck(
            device=self._device,
            security=self._security,
            shared_memory=self._shared_memory,
            peer_of_shard=self._plane.peer,
            send=self._send,
        )

    def _open_identity(self, state_dir: Path) -> None:
        """Read which cluster this worker belongs to, if there is a folder for it that can be written."""
        try:
            make_state_dir(state_dir)
            self._use.callback(StateDirUse(state_dir).close)
            self._identity = ClusterIdentity(state_dir)
        except TiermeshError as error:
            log.warning("the worker does not keep which cluster it belongs to: %s", error)
            return
        self._core.cluster = self._identity.cluster

    async def stop(self) -> None:
        """Drop all leases and free the mesh."""
        self._mailbox.close("the worker stops")
        self._files.disconnect()
        self._row_links.set_row(None, 0)  # the device thread may wait for a neighbour
        await asyncio.to_thread(self._device.close)
        self._inputs.close()
        self._use.close()

    def __str__(self) -> str:
        return f"aggregator {self.address}"

    async def run(self) -> None:
        """Work for the aggregator until cancelled; reconnect, or try its standbys, when the link ends."""
        await keep_attending(self, _ATTEND, self._security, self._backoff, self._hello_seconds)

    # ---- as an `Attendant` ----

    @property
    def address(self) -> str:
        """Address of the aggregator to try next."""
        return self._aggregators.current

    def begin(self) -> pb.WorkerMessage:
        """Return the first message."""
        self._was_welcome = False
        self._mailbox, self._answers = Mailbox(), HeartbeatAnswers()
        self._feed(ev.Connected())
        hello = self._core.hello(self._incarnation)
        hello.pipeline_host, hello.pipeline_port = self._pipeline_host, self._pipeline_port
        hello.MergeFrom(pb.Hello(**read_host_memory().hello_fields()))
        return wrap(pb.WorkerMessage, self._core.epoch, hello)

    def check_answer(self, link: _Link) -> Refusal | None:
        """Return why the aggregator's Welcome is not accepted."""
        return check_welcome(link.answer, link.message.epoch, self._core.epoch, self._core.cluster)

    async def attend(self, link: _Link) -> None:
        """Carry out orders and exchange tensors until the link ends."""
        async with open_channel(self.address, self._security, own_connection=True) as files:
            self._files.connect(files, f"aggregator {link.answer.name}")
            try:
                await self._attend(link)
            finally:
                self._files.disconnect()

    async def _attend(self, link: _Link) -> None:
        welcome, epoch = link.answer, link.message.epoch
        self._was_welcome = True
        if self._identity is not None:
            self._identity.obey(welcome.cluster)
        self._aggregators.answered()
        log.info("connected to aggregator %s at %s, epoch %d", welcome.name, self.address, epoch)
        timeouts = read_timeouts(welcome)
        self._backoff.set_max(timeouts.retry)
        self._row_links.timeouts = timeouts
        self._stall_seconds = welcome.stall_seconds or timeouts.stall
        self._feed(ev.Ordered(epoch, welcome))
        self._metrics.set_connected(True)
        self._plane.connect(self.address, welcome)
        try:
            await link.stream.run(
                self._mailbox.take,
                self._take_order,
                self._plane.exchange(),
                heartbeats=Heartbeats(timeouts, self._beat),
            )
        finally:
            self._check.cancel()

    def ended(self, end: LinkEnd) -> bool:
        """Go on to the next aggregator, or wait: one that ended a working link is tried again before its standbys."""
        self._feed(ev.Disconnected())
        self._metrics.set_connected(False)
        return (self._was_welcome and not end.ended_here) or self._aggregators.failed()

    def _take_order(self, command: pb.WorkerCommand) -> None:
        body = unwrap(command)
        if isinstance(body, pb.Leave):
            log.info("job %s: %s", body.job, body.reason)
        if isinstance(body, pb.Heartbeat):
            self._answers.heard(body)
        if isinstance(body, CheckOrder):
            self._check.take(body, self._core.job.job if self._core.job else "")
        elif body is not None:
            if isinstance(body, pb.Join):
                self._check.cancel()
                self._neighbour_check.end()
            self._feed(ev.Ordered(command.epoch, body))

    def _beat(self) -> None:
        self._device.end_hang(self._stall_seconds)
        heartbeat = pb.Heartbeat(
            device=self._device.report(),
            sent_bytes=self._metrics.sent_bytes,
            received_bytes=self._metrics.received_bytes,
        )
        self._answers.put_into(heartbeat)
        self._mailbox.put(wrap(pb.WorkerMessage, self._core.epoch, heartbeat))

    # ---- the core ----

    def _feed(self, event: ev.Input, chunk: TensorChunk | None = None) -> None:
        for effect in self._core.handle(event):
            if isinstance(effect, ev.PlaneOrder):
                self._plane.carry_out(effect)
            elif isinstance(effect, ev.ToAggregator):
                self._send(effect.body)
            elif isinstance(effect, ev.BuildLater):
                self._loop.call_later(effect.seconds, self._feed, ev.BuildDue(effect.attempt))
            elif isinstance(effect, ev.Build):
                self._files.fetch_job(effect)
            elif isinstance(effect, ev.OpenRow):
                self._open_row(effect)
            elif isinstance(effect, ev.CloseRow):
                self._row_links.set_row(None, 0)
            else:
                if isinstance(effect, ev.DropJob):
                    self._files.drop_job()
                elif isinstance(effect, ev.DropLease):
                    self._files.drop_lease(effect.lease)
                self._device.carry_out(effect, chunk)

    def _open_row(self, effect: ev.OpenRow) -> None:
        row = effect.row
        try:
            self._row_links.set_row(row, effect.epoch)
        except Refused as refused:
            # What a worker says of itself is checked at its Hello, so the fault is the aggregator's.
            log.error("%s", refused)
            self._send(pb.Failure(job=row.job, reason=str(refused)))
            return
        seats = "; ".join(
            f"{StageRun(each.first_stage, each.stages)} on {each.name}{f' at {each.address}' if each.address else ''}"
            for each in row.seats
        )
        log.info("job %s: row %d: %s", row.job, row_number(row.row), seats)

    def _open_exchange(self, lease: pb.Lease, config: JobConfig, sizes: ArraySizes) -> RowExchange:
        """Open the exchange of a lease's arrays; called on the device thread."""
        return self._row_links.open_lease(lease, ArrayPlan.of(config, sizes))

    def _send(self, body: WorkerBody | CheckReport) -> None:
        """Send a message; if it is too large, its lease or its job fails with that reason."""
        try:
            message = wrap(pb.WorkerMessage, self._core.epoch, body)
        except MessageTooLarge as error:
            log.error("%s", error)
            failure = pb.Failure(job=error.job, lease=error.lease, reason=str(error))
            message = wrap(pb.WorkerMessage, self._core.epoch, failure)
        self._mailbox.put(message)

    def _feed_from_device(self, event: ev.Input | ModelFiles) -> None:
        """Take an input for the core, or files to send, from the device thread."""
        if isinstance(event, ModelFiles):
            self._loop.call_soon_threadsafe(self._files.send, event)
        else:
            self._loop.call_soon_threadsafe(self._feed, event)


def read_timeouts(welcome: pb.Welcome) -> Timeouts:
    """Return the timeouts that follow from the heartbeat in an aggregator's Welcome.

    Raises:
        LinkClosed: the heartbeat is not a positive number.
    """
    try:
        return Timeouts.from_heartbeat(welcome.heartbeat_seconds)
    except Refused as refused:
        raise LinkClosed(f"invalid Welcome: {refused}") from None
