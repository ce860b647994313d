"""A plane: pieces of chunks, their sums, and a stripe of each job's tensors, behind the orders of protos/plane.proto.

Bookkeeping happens on the event loop, additions on one thread, work on tensors on another: a finished sum is staged
while the next one is added. Each thread works in the sequence of a job's orders, and on all jobs in turns. What a plane
has to say it says by reports, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from plane.bookkeeping import PlaneCore
from plane.master_tensors import MasterTensors
from plane.messages import extend
from plane.order_thread import OrderThread, Steps, Work
from plane.plane_tensors import Arrays, PlaneTensors, WeightsReady
from plane.streams.exchange_server import read_incarnation
from plane.streams.newest_weights import NewestWeights
from plane.streams.worker_sessions import WorkerSession, WorkerSessions
from plane.streams.worker_streams import WorkerDataStreams
from plane.sums import StoredSums, SumOrder
from plane.tensor_orders import TensorOrder, TensorOrders
from plane.waiting_payloads import ArrivedPiece, StagedSum, WaitingPayloads
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal, Refused
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.handover import Handover
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import ChunkRefused, TensorChunk
from services.tensors.chunk_messages import Message as ChunkMessage
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, MAX_ELEMENTS, Layout
from services.tensors.layout_parts import LayoutParts, Piece, make_piece_header, parse_parts
from services.tensors.stripes import Stripe
from services.transport.access.enforcement import check_daemon
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed


@dataclass(frozen=True)
class PlaneOwner:
    """What a plane calls, on the event loop unless said otherwise.

    Attributes:
        report: called with each report.
        fail: called with an unexpected error, or an order that can't be carried out. What the plane has no longer
            matches what was decided, so it carries out no further order.
        read_layout: returns the layout of the job that an OpenPart names; called on the allocating thread.
        fill: called there with each OpenPart and its tensors, to fill them from a checkpoint (Refused).
        copied: called with an order and the arrays of the copy for a checkpoint.
        drop_copy: called with the order to free a copy that nobody needs.
        jobs_change: called on the kernel thread when a job's tensors are dropped, and so before they are allocated.
            It gets the job's id and those of all jobs whose tensors are to be here, the one that was opened last at the
            end.
        send_sum: called on the thread of sums with the header and the values of a finished sum whose tensors are in
            another process; None if they are here.
        wait_to_send: waits until few enough sums are on their way to another process.
    """

    report: Callable[[Message], None]
    fail: Callable[[Exception], None]
    read_layout: Callable[[pb.OpenPart], Layout]
    fill: Callable[[pb.OpenPart, MasterTensors], None]
    copied: Callable[[pb.CopyPart, Arrays], None]
    drop_copy: Callable[[pb.DropCopy], None]
    jobs_change: Callable[[str, Sequence[str]], None] = lambda job, here: None
    send_sum: Callable[[ChunkHeader, Float32Array], None] | None = None
    wait_to_send: Callable[[], Awaitable[None]] | None = None


class Plane:
    """Sums, and tensors unless they are in another process, of a stripe of each job's chunks.

    Args:
        owner: what the plane calls.
        epoch: epoch of the aggregator whose orders it carries out.
        stripe: chunks of this plane.
        incarnation: incarnation of this process.
        metrics: metrics of data streams; None for a plane that workers do not reach.
        update_metrics: metrics of updates; None if the optimizer's core is in this process and counts them.
        shared_memory: whether payloads may go through memory shared with a worker on the same host.

    Attributes:
        newest: weights that can be sent.
    """

    def __init__(
        self,
        owner: PlaneOwner,
        *,
        epoch: int,
        stripe: Stripe,
        incarnation: str,
        metrics: AggregatorMetrics | None,
        update_metrics: OptimizerMetrics | None,
        shared_memory: bool,
    ) -> None:
        self._owner = owner
        self._stripe = stripe
        self.newest = NewestWeights(stripe)
        self._loop = asyncio.get_running_loop()
        self._core = PlaneCore(epoch, stripe)
        self._workers = WorkerSessions(epoch)
        self._worker_attended = asyncio.Event()
        self._waiting = WaitingPayloads()
        self._data_streams = (
            None
            if metrics is None
            else WorkerDataStreams(
                core=self._core,
                newest=self.newest,
                metrics=metrics,
                opened=lambda session: self._report(pb.WorkerExchanges(session=session)),
                arrived=self._piece_arrived,
                wait_for_room=self.wait_for_room,
                shared_memory=shared_memory,
            )
        )
        self._sums = StoredSums()
        self._sums_thread = OrderThread("sums", self._fail)
        self._kernel = OrderThread("kernel", self._fail)
        self._tensors = TensorOrders(
            stripe=stripe,
            newest=self.newest,
            incarnation=incarnation,
            metrics=update_metrics,
            read_layout=owner.read_layout,
            fill=owner.fill,
            jobs_change=owner.jobs_change,
            report=partial(self._call_on_loop, self._report),
            copied=partial(self._call_on_loop, self._copied),
            drop_copy=partial(self._call_on_loop, owner.drop_copy),
            opened=partial(self._call_on_loop, self._opened),
            dropped=partial(self._call_on_loop, self._drop_job),
            weights_ready=partial(self._call_on_loop, self._weights_ready),
        )
        self._calls = Handover(self._call)
        self._reports: list[Message] = []  # those of this turn of the event loop
        self._broken = False  # an unexpected error happened; set on either thread

    @property
    def jobs(self) -> list[str]:
        """Ids of the jobs whose tensors are here, or pass through."""
        return self._core.jobs

    def close(self, reason: str) -> None:
        """End the workers' streams, and drop all payloads and tensors; called on the event loop."""
        self._broken = True
        self._workers.close_all(reason)
        self._sums_thread.close()
        self._kernel.close()
        self._tensors.close()
        self._waiting.close()

    # ---- workers ----

    async def find_worker(self, incarnation: str, number: int | None = None) -> WorkerSession | None:
        """Return the worker session that a data stream names; None if it is not announced in time.

        A worker may connect to a shard before the aggregator's WorkerAttends has come.

        Args:
            incarnation: incarnation of the worker's process.
            number: session number in the worker's Welcome; None for the newest, which must be known.
        """
        deadline = self._loop.time() + HELLO_SECONDS
        while True:
            worker = self._workers.of_incarnation(incarnation)
            if number is None:
                return worker
            if worker is not None and worker.number >= number:
                return worker if worker.number == number else None
            self._worker_attended.clear()
            try:
                await asyncio.wait_for(self._worker_attended.wait(), deadline - self._loop.time())
            except asyncio.TimeoutError:
                return None

    async def serve(self, worker: WorkerSession | None, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve a worker's data stream until it ends, and report its end; abort one of an unknown worker.

        Raises:
            Denied: the caller is not this worker, which goes on.
        """
        assert self._data_streams is not None
        if worker is None:
            text = (
                f"worker incarnation {read_incarnation(context)!r} has no control stream; open Attend first"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        check_daemon("worker", worker.name)
        try:
            await self._data_streams.serve(worker, context)
        finally:
            worker.mailbox.close("its data stream ended")
            try:
                await worker.mailbox.wait_closed()  # raises the reason of the first close
            except LinkClosed as closed:
                self._worker_gone(worker, closed)

    def _worker_gone(self, worker: WorkerSession, closed: LinkClosed) -> None:
        if self._workers.get(worker.number) is not None:
            self._workers.close(worker.number)
            self._core.worker_left(worker.number)
            self._waiting.drop_stream(worker.number)
            self._report(pb.WorkerGone(session=worker.number, reason=str(closed), code=closed.code.value[0]))

    def _piece_arrived(self, session: int, piece: TensorChunk) -> None:
        """Report a piece of a chunk that a worker's data stream has brought."""
        header = piece.header
        if not self._stripe.contains(header.index):
            count = self._stripe.count
            raise ChunkRefused(
                f"chunk {header.index} of job {header.job}, lease {header.lease}: it belongs to shard "
                f"{header.index % count} of {count}, but this is shard {self._stripe.index}"
            )
        arrival = self._waiting.add_piece(session, piece)
        hit_failpoint("shard.arrived")
        in_place, part = piece.memory is not None, LayoutPart(offset=header.offset, elements=header.elements)
        self._report(
            pb.ArrivedPieces(
                session=session, arrival=arrival, header=header, in_place=in_place, pieces=[part]
            )
        )

    def next_weights(self, session: int) -> ChunkHeader | None:
        """Return the header of the next chunk of weights to send; see `PlaneCore.next_weights`."""
        return self._core.next_weights(session)

    async def wait_for_room(self, job: str, session: int | None = None) -> None:
        """Wait while too many payloads of a job or a worker's session are here; see `WaitingPayloads`."""
        if self._owner.wait_to_send is not None:
            await self._owner.wait_to_send()
        await self._waiting.wait_for_room(job, session)

    def _report(self, body: Message) -> None:
        """Report something at the end of this turn of the event loop; consecutive reports of a run are one by then."""
        if self._reports and extend(self._reports[-1], body):
            return
        if not self._reports:
            self._loop.call_soon(self._tell)
        self._reports.append(body)

    def _copied(self, order: pb.CopyPart, arrays: Arrays) -> None:
        self._tell()  # what was reported before comes first
        self._owner.copied(order, arrays)

    def _tell(self) -> None:
        reports, self._reports = self._reports, []
        for report in reports:
            self._call(partial(self._owner.report, report))

    # ---- payloads from other roles in this process ----

    def put_finished_sum(self, job: str, chunk: int, values: Float32Array) -> None:
        """Take a finished sum from another process, [elements of the chunk] float32, which the next order stages."""
        self._waiting.put_sum(job, chunk, values)

    def put_weights(self, chunk: TensorChunk, message: ChunkMessage | None, elements: int) -> None:
        """Take a chunk of new weights from another process, which workers are sent.

        Args:
            chunk: the chunk.
            message: message in which it came; None if it came through shared memory.
            elements: elements of the whole layout.
        """
        header = chunk.header
        if self._core.expected_elements(header.job) is None:
            return  # its job is over
        self.newest.put_received(chunk, message, elements)
        version = Version(header.generation, header.step)
        self._core.weights_ready(header.job, version, self._stripe.to_local(header.index) + 1)
        self._workers.wake_all()

    # ---- orders ----

    def carry_out(self, orders: Sequence[Message]) -> None:
        """Carry out orders in their sequence; one that can't be carried out breaks the plane."""
        if self._broken:
            return
        sums: list[Work] = []
        tensors: list[Work] = []
        try:
            for order in orders:
                self._begin(order, sums, tensors)
        except Exception as error:  # a defect of this process or of who decides, not of the link
            self._fail(error)
            return
        self._sums_thread.start(sums)
        self._kernel.start(tensors)

    def _fail(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            self._waiting.cancel_sums()
            self._owner.fail(error)

    def _call_on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Have the event loop do something for the kernel thread; an error breaks the plane."""
        if not self._broken:  # else the event loop may be closed
            self._calls.put(partial(call, *arguments))

    def _call(self, call: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            call()
        except Exception as error:  # the event loop would only log it
            self._fail(error)

    def _begin(self, order: Message, sums: list[Work], tensors: list[Work]) -> None:
        """Do an order's work on the event loop; append what it has for the threads of sums and tensors."""
        match order:
            case pb.KeepPieces():
                arrived = [self._waiting.pop_piece(arrival) for arrival in order.arrivals]
                sums.append(Work(order.job, partial(self._keep_pieces, arrived)))
            case pb.DiscardPieces():
                for arrival in order.arrivals:
                    self._waiting.discard_piece(arrival)
            case pb.SendVersion():
                version = Version(order.generation, order.step)
                self._core.send_version(order.session, order.job, version, _read_parts(order))
                worker = self._workers.get(order.session)
                if worker is not None:
                    worker.wake.set()
            case pb.WorkerAttends():
                hello = cluster.Hello(name=order.name, incarnation=order.incarnation)
                self._workers.open(hello, order.session)
                self._core.worker_attends(order.session)
                self._waiting.open_stream(order.session)
                self._worker_attended.set()
            case pb.WorkerLeft():
                worker = self._workers.get(order.session)
                if worker is not None:
                    self._workers.close(order.session)
                    self._core.worker_left(order.session)
                    self._waiting.drop_stream(order.session)
                    worker.mailbox.close(order.reason)
            case pb.PassJob():
                self.newest.clear(order.job)
                if order.elements:
                    wire = WireTypes(order.gradients, order.weights)
                    self._open_job(order.job, order.elements, wire, sends_pieces=order.pieces)
                else:
                    self._drop_job(order.job)
            case cluster.Heartbeat():
                self._report(cluster.Heartbeat(answered_seconds=order.sent_seconds))
            case pb.FinishSum() if self._owner.send_sum is not None:
                sums.append(Work(order.job, partial(self._send_sums, self._owner.send_sum, order)))
            case pb.FinishSum():
                finished = [self._waiting.expect_sum(order.job, chunk) for chunk in order.chunks]
                sums.append(Work(order.job, partial(self._finish, order, finished)))
            case _ if isinstance(order, SumOrder):
                sums.append(Work(order.job, partial(self._sums.carry_out, order)))
            case pb.StageChunks():
                for chunk in order.chunks:
                    staged = self._waiting.take_sum(order.job, chunk)
                    stage = partial(self._stage, order, chunk, staged)
                    tensors.append(Work(order.job, stage, after=staged.values))
            case _ if isinstance(order, TensorOrder):
                if isinstance(order, pb.UpdatePart | pb.OpenPart | pb.DropPart):
                    self._waiting.discard_sums(order.job)
                if isinstance(order, pb.MakeWeights):
                    self._core.remake_weights(order.job)
                tensors.append(Work(order.job, partial(self._tensors.carry_out, order)))

    def _open_job(self, job: str, elements: int, wire: WireTypes, *, sends_pieces: bool) -> None:
        self._waiting.open_job(job)
        self._core.open_job(job, elements, wire, sends_pieces=sends_pieces)

    def _drop_job(self, job: str) -> None:
        self._waiting.drop_job(job)
        self._core.drop_job(job)

    # ---- on the thread of sums ----

    def _keep_pieces(self, arrived: Sequence[ArrivedPiece]) -> None:
        for each in arrived:
            self._sums.keep_piece(each.piece)
            each.note_kept()

    def _finish(self, order: pb.FinishSum, finished: Sequence[Future[Float32Array]]) -> Steps:
        for future, values in zip(finished, self._sums.finish(order), strict=True):
            if future.set_running_or_notify_cancel():  # else the plane is broken or closed
                future.set_result(values)
            yield None

    def _send_sums(self, send: Callable[[ChunkHeader, Float32Array], None], order: pb.FinishSum) -> Steps:
        offset = order.header.offset
        for chunk, values in zip(order.chunks, self._sums.finish(order), strict=True):
            piece = Piece(chunk, offset + (chunk - order.header.index) * CHUNK_ELEMENTS, len(values))
            send(make_piece_header(order.header, piece), values)
            yield None

    # ---- on the kernel thread, and what it reports ----

    def _stage(self, order: pb.StageChunks, chunk: int, staged: StagedSum) -> None:
        staged.backlog.remove()
        self._tensors.stage(order, chunk, staged.values)

    def _opened(self, order: pb.OpenPart, tensors: PlaneTensors) -> None:
        self._open_job(order.job, tensors.elements, tensors.wire, sends_pieces=tensors.sends_pieces)
        hit_failpoint("shard.opened")
        self._report(pb.PartOpened(job=order.job, opening=order.opening))

    def _weights_ready(self, ready: WeightsReady, updated: bool) -> None:
        """Send a chunk of weights to the workers, on the event loop; report it if it was just updated."""
        header = ready.header
        if not self._core.weights_ready(header.job, Version(header.generation, header.step), ready.chunks):
            return
        if updated:
            self._report(pb.UpdatedPart(job=header.job, step=header.step - 1, chunks=ready.chunks))
        self._workers.wake_all()


def _read_parts(order: pb.SendVersion) -> LayoutParts | None:
    """Return the parts of the layout that a worker loads; None for all of it.

    Raises:
        Refused: they are none of any layout.
    """
    parts = parse_parts(order.parts, MAX_ELEMENTS) if order.parts else None
    if isinstance(parts, Refusal):
        raise Refused(f"order to send weights to worker session {order.session}: {parts}")
    return parts
