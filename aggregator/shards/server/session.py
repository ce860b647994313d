"""One aggregator's connection to a shard, from its Hello to the end of its streams.

Bookkeeping happens on the event loop, work on payloads and tensors on the kernel thread (kernel_state.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from google.protobuf.message import Message

from aggregator.core.events import ChunkArrived, DataStreamOpened
from aggregator.data_plane.worker_streams import WorkerDataStreams
from aggregator.shards.array_pieces import write_piece
from aggregator.shards.messages import MAX_QUEUED_MESSAGES, unwrap, wrap_report
from aggregator.shards.server.core import ShardCore
from aggregator.shards.server.kernel_state import KernelState, ShardTensors, WeightsReady
from aggregator.shards.server.tensor_copies import TensorCopies
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from optimizer.tensor_store import reason_of
from plane.sums import NotStored, SumOrder
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.errors import Refusal, Refused, name_internal_error
from services.files.store import FileStore
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.plan import TOTAL_WINDOW_CHUNKS, WireTypes
from services.protocol.versions import Version
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.backlog import Backlog
from services.runtime.metrics import OptimizerMetrics
from services.tasks import call_in, start_call
from services.tensors.chunk_messages import ChunkRefused, TensorChunk
from services.tensors.layout import MAX_ELEMENTS
from services.tensors.layout_parts import LayoutParts, parse_parts
from services.tensors.stripes import Stripe
from services.transport.data.newest_weights import NewestWeights
from services.transport.limits import HELLO_SECONDS
from services.transport.mailbox import Mailbox

log = logging.getLogger("tiermesh.aggregator")

MAX_WAITING_CHUNKS = TOTAL_WINDOW_CHUNKS
"""Payloads that may wait for the aggregator's decision and for the kernel thread; then no worker's stream is read."""


class ShardSession:
    """Session of the aggregator that this shard obeys.

    Args:
        hello: Hello of the aggregator.
        incarnation: incarnation of this process.
        metrics: metrics of this shard.
        optimizer_metrics: metrics of the updates of this shard's chunks.
        shared_memory: whether payloads may go through memory shared with a worker on the same host.
        files: files that orders refer to.
        note_job: called with the id of the job whose tensors are to be here, empty for none; on any thread.

    Attributes:
        name: name of the aggregator.
        incarnation: incarnation of the aggregator.
        epoch: epoch of the aggregator.
        stripe: chunks of this shard.
        reports: reports on their way to the aggregator; closing it ends the session.
        copies: copies of the tensors for checkpoints.
        data_streams: server of the workers' data streams.
    """

    def __init__(
        self,
        hello: cluster.Hello,
        *,
        incarnation: str,
        metrics: AggregatorMetrics,
        optimizer_metrics: OptimizerMetrics,
        shared_memory: bool,
        files: FileStore,
        note_job: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.name, self.incarnation, self.epoch = hello.name, hello.incarnation, hello.epoch_seen
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.reports: Mailbox[pb.PlaneReport] = Mailbox(MAX_QUEUED_MESSAGES)
        self.copies = TensorCopies()
        self._own_incarnation = incarnation
        self._files = files
        self._note_job = note_job
        self._optimizer_metrics = optimizer_metrics
        self._loop = asyncio.get_running_loop()
        self._core = ShardCore(self.epoch, self.stripe)
        self._workers = WorkerSessions(self.epoch)
        self._worker_attended = asyncio.Event()
        self._newest = NewestWeights(self.stripe)
        self._backlog = Backlog(MAX_WAITING_CHUNKS)
        self.data_streams = WorkerDataStreams(
            core=self._core,
            newest=self._newest,
            sessions=self._workers,
            metrics=metrics,
            feed=self._feed,
            wait_for_room=self._backlog.wait_for_room,
            shared_memory=shared_memory,
        )
        self._kernel_state = KernelState()
        self._kernel = ThreadPoolExecutor(1, "shard")
        self._arrived: dict[int, TensorChunk] = {}  # by arrival, until the aggregator decides
        self._last_arrival = 0
        self._opening = 0
        self._broken = False  # an unexpected error happened; set on either thread

    @property
    def job(self) -> str:
        """Id of the job whose tensors are here; empty if there are none."""
        return self._core.job

    def close(self, reason: str) -> None:
        """End the session and the workers' streams, and drop all payloads and tensors."""
        self.reports.close(reason)
        self._workers.close_all(reason)
        self.copies.close()
        self._kernel.shutdown(wait=False, cancel_futures=True)
        self._arrived.clear()

    def _report(self, body: Message) -> None:
        self.reports.put(wrap_report(body))

    # ---- workers ----

    async def find_worker(self, incarnation: str, number: int) -> WorkerSession | None:
        """Return the worker session that a data stream names; None if the aggregator does not announce it in time.

        A worker may connect to the shard before the aggregator's WorkerAttends has come.

        Args:
            incarnation: incarnation of the worker's process.
            number: session number in the worker's Welcome.
        """
        deadline = self._loop.time() + HELLO_SECONDS
        while True:
            worker = self._workers.of_incarnation(incarnation)
            if worker is not None and worker.number >= number:
                return worker if worker.number == number else None
            self._worker_attended.clear()
            try:
                await asyncio.wait_for(self._worker_attended.wait(), deadline - self._loop.time())
            except asyncio.TimeoutError:
                return None

    def worker_gone(self, worker: WorkerSession, reason: str) -> None:
        """Report the end of a worker's data stream."""
        if self._workers.get(worker.number) is not None:
            self._workers.close(worker.number)
            self._core.worker_left(worker.number)
            self._report(pb.WorkerGone(session=worker.number, reason=reason))

    def _feed(self, event: DataStreamOpened | ChunkArrived, chunk: TensorChunk | None) -> None:
        """Report what a worker's data stream brings."""
        if isinstance(event, DataStreamOpened):
            self._report(pb.WorkerExchanges(session=event.session))
            return
        assert chunk is not None
        header = event.header
        if not self.stripe.contains(header.index):
            count = self.stripe.count
            raise ChunkRefused(
                f"chunk {header.index} of job {header.job}, lease {header.lease}: it belongs to shard "
                f"{header.index % count} of {count}, but this is shard {self.stripe.index}"
            )
        self._last_arrival += 1
        self._arrived[self._last_arrival] = chunk
        self._backlog.add()
        hit_failpoint("shard.arrived")
        self._report(pb.ArrivedPiece(session=event.session, arrival=self._last_arrival, header=header))

    def _pop_arrived(self, arrival: int) -> TensorChunk:
        chunk = self._arrived.pop(arrival, None)
        if chunk is None:
            raise Refused(
                f"order for arrived chunk {arrival}: expected one that waits for a decision, at most "
                f"{self._last_arrival}"
            )
        return chunk

    # ---- orders ----

    def carry_out(self, orders: Sequence[pb.PlaneOrder]) -> None:
        """Carry out orders of the aggregator, in their sequence; one that can't be carried out ends the session."""
        if self._broken:
            return
        try:
            tasks = [self._begin(body) for envelope in orders if (body := unwrap(envelope)) is not None]
        except Exception as error:  # a defect of this process or of the aggregator, not of the link
            self._fail(error)
            return
        work = [task for task in tasks if task is not None]
        if work:
            start_call(self._kernel, "orders of the aggregator", self._run, work)

    def _run(self, work: Sequence[Callable[[], None]]) -> None:
        if self._broken:
            return
        try:
            for task in work:
                task()
        except Exception as error:  # the thread pool would swallow it
            self._broken = True  # at once, so that no order that waits is carried out
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        """Report an unexpected error and end the session: the state here does not match the aggregator's orders."""
        self._broken = True
        is_order_at_fault = isinstance(error, Refused | NotStored)
        reason = str(error) if is_order_at_fault else name_internal_error(error)
        code = grpc.StatusCode.FAILED_PRECONDITION if is_order_at_fault else grpc.StatusCode.INTERNAL
        log.error("%s", reason, exc_info=error)
        self._report(pb.OrderFailed(reason=reason))
        self.reports.close(f"the shard can't carry out an order: {reason}", code)

    def _call_on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Have the event loop do something for the kernel thread; an error ends the session."""
        self._loop.call_soon_threadsafe(self._call, call, arguments)

    def _call(self, call: Callable[..., None], arguments: Sequence[object]) -> None:
        if self._broken:
            return
        try:
            call(*arguments)
        except Exception as error:  # the event loop would only log it
            self._fail(error)

    def _begin(self, body: Message) -> Callable[[], None] | None:
        """Do an order's work on the event loop; return its work for the kernel thread, if there is any."""
        match body:
            case pb.KeepPiece():
                return partial(self._keep_piece, self._pop_arrived(body.arrival))
            case pb.DiscardPiece():
                self._pop_arrived(body.arrival)
                self._backlog.cancel()
            case pb.SendUpTo():
                self._core.send_up_to(
                    body.session,
                    Version(body.generation, body.step),
                    body.limit,
                    parts=_read_parts(body),
                    restart=body.restart,
                )
                worker = self._workers.get(body.session)
                if worker is not None:
                    worker.wake.set()
            case pb.WorkerAttends():
                hello = cluster.Hello(name=body.name, incarnation=body.incarnation)
                self._workers.open(hello, body.session)
                self._core.worker_attends(body.session)
                self._worker_attended.set()
            case pb.WorkerLeft():
                worker = self._workers.get(body.session)
                if worker is not None:
                    self._workers.close(body.session)
                    self._core.worker_left(body.session)
                    worker.mailbox.close(body.reason)
            case cluster.Heartbeat():
                self._report(cluster.Heartbeat())
            case _ if isinstance(body, SumOrder):
                return partial(self._kernel_state.sums.carry_out, body)
            case _:
                return partial(self._guarded, body)
        return None

    # ---- on the kernel thread ----

    def _keep_piece(self, piece: TensorChunk) -> None:
        self._kernel_state.sums.keep_piece(piece)
        self._backlog.remove()

    def _guarded(self, body: Message) -> None:
        """Carry out an order on the tensors so that an error fails the job, not the process."""
        try:
            self._work(body)
        except Exception as error:
            self._report_from_kernel(
                pb.PartBroke(opening=self._kernel_state.opening, reason=reason_of(error))
            )

    def _report_from_kernel(self, body: Message) -> None:
        self._call_on_loop(self._report, body)

    def _work(self, body: Message) -> None:
        state, tensors = self._kernel_state, self._kernel_state.tensors
        if isinstance(body, pb.OpenPart | pb.DropPart):
            self._open(body)
            return
        if tensors is None:
            return  # a later OpenPart brings new ones; PartBroke has reported why there are none
        match body:
            case pb.StageChunk(initial=True):
                tensors.store_initial(body.chunk, state.pop_finished_sum(body.chunk))
            case pb.StageChunk():
                block_sums = tensors.stage(body.chunk, state.pop_finished_sum(body.chunk))
                hit_failpoint("shard.staged")
                staged = pb.StagedChunk(job=body.job, chunk=body.chunk, block_sums=block_sums.tolist())
                self._report_from_kernel(staged)
            case pb.UpdatePart():
                state.discard_finished_sums()
                tensors.update(body, self._on_updated)
            case pb.MakeWeights():
                tensors.publish_weights(body, self._on_published)
            case pb.CopyPart():
                self.copies.make(body.copy, tensors.arrays())

    def _on_updated(self, ready: WeightsReady) -> None:
        self._call_on_loop(self._weights_ready, ready, True)

    def _on_published(self, ready: WeightsReady) -> None:
        self._call_on_loop(self._weights_ready, ready, False)

    def _open(self, order: pb.OpenPart | pb.DropPart) -> None:
        self._kernel_state.replace_tensors(None)  # first, so that two jobs never take memory at once
        self._newest.clear()
        self._call_on_loop(self._core.drop_job)
        self._optimizer_metrics.end_job()
        self._note_job(order.job if isinstance(order, pb.OpenPart) else "")
        if isinstance(order, pb.OpenPart):
            self._kernel_state.opening = order.opening
            tensors = ShardTensors(
                order,
                self.stripe,
                self._newest,
                epoch=self.epoch,
                incarnation=self._own_incarnation,
                metrics=self._optimizer_metrics,
                files=self._files,
            )
            self._kernel_state.replace_tensors(tensors)
            self._call_on_loop(self._opened, order, tensors.elements, tensors.wire, tensors.sends_pieces)

    def _opened(self, order: pb.OpenPart, elements: int, wire: WireTypes, sends_pieces: bool) -> None:
        self._opening = order.opening
        self._core.open_job(order.job, elements, wire, sends_pieces=sends_pieces)
        hit_failpoint("shard.opened")
        self._report(pb.PartOpened(opening=order.opening))

    def _weights_ready(self, ready: WeightsReady, updated: bool) -> None:
        """Send a chunk of weights to the workers, on the event loop; report it if it was just updated."""
        header = ready.header
        if not self._core.weights_ready(header.job, Version(header.generation, header.step), ready.chunks):
            return
        if updated:
            self._report(pb.UpdatedPart(job=header.job, step=header.step - 1, chunks=ready.chunks))
        self._workers.wake_all()

    async def write_piece(self, piece: pb.ArrayPiece) -> None:
        """Write a piece of a checkpoint into this shard's tensors.

        Raises:
            Refused: the piece is damaged, does not fit, or belongs to another OpenPart than the newest.
        """
        if piece.opening != self._opening:
            raise Refused(
                f"array {piece.array}: sent for OpenPart {piece.opening}, expected {self._opening}, the newest"
            )
        await call_in(self._kernel, self._write_piece, piece)

    def _write_piece(self, piece: pb.ArrayPiece) -> None:
        if self._kernel_state.tensors is not None:
            write_piece(piece, self._kernel_state.tensors.arrays())
            hit_failpoint("shard.write.mid")


def _read_parts(order: pb.SendUpTo) -> LayoutParts | None:
    """Return the parts of the layout that a worker loads; None for all of it.

    Raises:
        Refused: they are none of any layout.
    """
    parts = parse_parts(order.parts, MAX_ELEMENTS) if order.parts else None
    if isinstance(parts, Refusal):
        raise Refused(f"order to send weights to worker session {order.session}: {parts}")
    return parts
