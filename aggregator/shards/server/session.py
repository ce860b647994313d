"""What a shard holds for the aggregator that attends it, from its Hello to the end of its streams.

Bookkeeping is on the event loop; payloads and tensors are the kernel thread's (part.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from google.protobuf.message import Message

from aggregator.core.events import ChunkArrived, DataStreamOpened, Keep
from aggregator.data_plane.worker_streams import WorkerDataStreams
from aggregator.shards.array_pieces import TensorCopies, put
from aggregator.shards.messages import from_node, opened, report, to_effect
from aggregator.shards.server.core import ShardCore
from aggregator.shards.server.kernel_state import KernelState, ShardTensors, WeightsReady
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from optimizer.tensor_store import reason_of
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from services.config.job import JobConfig
from services.errors import Refused, describe_internal_error
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.plan import TOTAL_WINDOW_CHUNKS
from services.protocol.versions import Version
from services.runtime.backlog import Backlog
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics
from services.tensors.chunk_messages import ChunkRefused, TensorChunk
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe
from services.transport.limits import HELLO_SECONDS
from services.transport.links import LinkClosed
from services.transport.mailbox import Mailbox
from services.transport.newest_weights import NewestWeights

log = logging.getLogger("tiermesh.aggregator")

MESSAGES = 1 << 16
"""Orders or reports that may wait for a peer to read."""
WAITING_CHUNKS = TOTAL_WINDOW_CHUNKS
"""Payloads that may wait for the aggregator's word on them and for the kernel thread; then workers' streams are not
read."""


class ShardSession:
    """One attendance of an aggregator.

    Args:
        hello: what the aggregator said first.
        incarnation: of this process.
        metrics: of this shard.
        optimizer_metrics: of the updates of its part.
        shared_memory: whether payloads may go through memory shared with a worker.

    Attributes:
        reports: on their way to the aggregator; closing it ends the attendance.
    """

    def __init__(
        self,
        hello: cluster.Hello,
        *,
        incarnation: str,
        metrics: AggregatorMetrics,
        optimizer_metrics: OptimizerMetrics,
        shared_memory: bool,
    ) -> None:
        self.name, self.incarnation, self.epoch = hello.name, hello.incarnation, hello.epoch_seen
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.reports: Mailbox[pb.ShardReport] = Mailbox(MESSAGES)
        self.copies = TensorCopies()
        self._own_incarnation = incarnation
        self._optimizer_metrics = optimizer_metrics
        self._loop = asyncio.get_running_loop()
        self._core = ShardCore(self.epoch, self.stripe)
        self._sessions = WorkerSessions(self.epoch)
        self._attending = asyncio.Event()  # set when a worker is told of
        self._newest = NewestWeights(self.stripe)
        self._backlog = Backlog(WAITING_CHUNKS)
        self.exchange = WorkerDataStreams(
            core=self._core,
            newest=self._newest,
            sessions=self._sessions,
            metrics=metrics,
            feed=self._feed,
            wait_for_room=self._backlog.wait_for_room,
            shared_memory=shared_memory,
        )
        self._bench = KernelState()
        self._kernel = ThreadPoolExecutor(1, "shard")
        self._arrived: dict[int, TensorChunk] = {}  # that the aggregator is to decide on
        self._last_arrival = 0
        self._opening = 0

    def close(self, reason: str) -> None:
        """The attendance is over: workers' streams end, and what is held is forgotten."""
        self.reports.close(reason)
        self._sessions.close_all(reason)
        self.copies.close()
        self._kernel.shutdown(wait=False, cancel_futures=True)
        self._arrived.clear()

    def _report(self, body: Message) -> None:
        self.reports.put(report(body))

    # ---- workers ----

    async def session_of(self, incarnation: str, number: int) -> WorkerSession | None:
        """The session by which a worker's data stream names itself; the aggregator's word of it is waited for."""
        deadline = self._loop.time() + HELLO_SECONDS
        while True:
            session = self._sessions.of_incarnation(incarnation)
            if session is not None and session.number >= number:
                return session if session.number == number else None
            self._attending.clear()
            try:
                await asyncio.wait_for(self._attending.wait(), deadline - self._loop.time())
            except asyncio.TimeoutError:
                return None

    def gone(self, session: WorkerSession, reason: str) -> None:
        """A worker's data stream is over."""
        if self._sessions.get(session.number) is not None:
            self._sessions.close(session.number)
            self._core.left(session.number)
            self._report(pb.WorkerGone(session=session.number, reason=reason))

    def _feed(self, event: DataStreamOpened | ChunkArrived, chunk: TensorChunk | None) -> None:
        """What a worker's data stream brings."""
        if isinstance(event, DataStreamOpened):
            self._report(pb.WorkerExchanges(session=event.session))
            return
        assert chunk is not None
        header = event.header
        if not self.stripe.contains(header.index):
            count = self.stripe.count
            raise ChunkRefused(
                f"chunk {header.index}: of job {header.job}, lease {header.lease}: it is shard "
                f"{header.index % count}'s of {count}, this is shard {self.stripe.index}"
            )
        self._last_arrival += 1
        self._arrived[self._last_arrival] = chunk
        self._backlog.add()
        hit_failpoint("shard.arrived")
        self._report(pb.ArrivedChunk(session=event.session, arrival=self._last_arrival, header=header))

    def _decide(self, arrival: int) -> TensorChunk:
        chunk = self._arrived.pop(arrival, None)
        if chunk is None:
            raise LinkClosed(
                f"an order on arrival {arrival}: the newest is {self._last_arrival}, and each is decided on once",
                grpc.StatusCode.INVALID_ARGUMENT,
            )
        return chunk

    # ---- orders ----

    def carry_out(self, orders: Sequence[pb.ShardOrder]) -> None:
        """Orders of the aggregator, in their order.

        Raises:
            LinkClosed: one makes no sense.
        """
        tasks = [self._begin(body) for sealed in orders if (body := opened(sealed)) is not None]
        work = [task for task in tasks if task is not None]
        if work:
            self._kernel.submit(self._run, work)

    def _run(self, work: Sequence[Callable[[], None]]) -> None:
        try:
            for task in work:
                task()
        except Exception as error:  # must reach the event loop: this thread has nobody to tell
            self._loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: Exception) -> None:
        """What is held does not fit the aggregator's orders: it has to start over."""
        log.error("%s", describe_internal_error(error), exc_info=error)
        self.reports.close(
            f"it can't carry out an order: {describe_internal_error(error)}", grpc.StatusCode.INTERNAL
        )

    def _begin(self, body: Message) -> Callable[[], None] | None:
        """What is to be done on the event loop is done; what is left is for the kernel thread."""
        match body:
            case pb.KeepSum():
                chunk = self._decide(body.arrival)
                return partial(self._keep, Keep(chunk.header.index, from_node(body.node)), chunk)
            case pb.DiscardChunk():
                self._decide(body.arrival)
                self._backlog.cancel()
            case pb.SendUpTo():
                self._core.send(body.session, Version(body.generation, body.step), body.limit)
                session = self._sessions.get(body.session)
                if session is not None:
                    session.wake.set()
            case pb.WorkerAttends():
                hello = cluster.Hello(name=body.name, incarnation=body.incarnation)
                self._sessions.open(hello, body.session)
                self._core.attends(body.session)
                self._attending.set()
            case pb.WorkerLeft():
                left = self._sessions.get(body.session)
                if left is not None:
                    self._sessions.close(body.session)
                    self._core.left(body.session)
                    left.mailbox.close(body.reason)
            case cluster.Heartbeat():
                self._report(cluster.Heartbeat())
            case _:
                effect = to_effect(body)
                if effect is not None:
                    return partial(self._bench.sums.carry_out, effect, None)
                return partial(self._guarded, body)
        return None

    # ---- on the kernel thread ----

    def _keep(self, effect: Keep, chunk: TensorChunk) -> None:
        self._bench.sums.carry_out(effect, chunk)
        self._backlog.remove()

    def _guarded(self, body: Message) -> None:
        """Work on the part, whose failure is the job's, not the process's."""
        try:
            self._work(body)
        except Exception as error:
            self._tell(pb.PartBroke(opening=self._bench.opening, reason=reason_of(error)))

    def _tell(self, body: Message) -> None:
        self._loop.call_soon_threadsafe(self._report, body)

    def _work(self, body: Message) -> None:
        bench, part = self._bench, self._bench.part
        if isinstance(body, pb.OpenPart | pb.DropPart):
            self._open(body)
            return
        if part is None:
            return  # dropped, for a reason that was told of
        match body:
            case pb.StageChunk(initial=True):
                part.store_initial(body.chunk, bench.take(body.chunk))
            case pb.StageChunk():
                sums = part.stage(body.chunk, bench.take(body.chunk))
                hit_failpoint("shard.staged")
                self._tell(pb.StagedChunk(chunk=body.chunk, block_sums=sums.tolist()))
            case pb.UpdatePart():
                bench.decided()
                part.update(body, self._tell_updated)
            case pb.MakeWeights():
                part.make_weights(body, self._tell_made)
            case pb.CopyPart():
                self.copies.make(body.copy, part.arrays())

    def _tell_updated(self, made: WeightsReady) -> None:
        self._loop.call_soon_threadsafe(self._made, made, True)

    def _tell_made(self, made: WeightsReady) -> None:
        self._loop.call_soon_threadsafe(self._made, made, False)

    def _open(self, order: pb.OpenPart | pb.DropPart) -> None:
        self._bench.open(None)  # so that two are never held
        self._newest.clear()
        self._loop.call_soon_threadsafe(self._core.dropped)
        if isinstance(order, pb.OpenPart):
            self._bench.opening = order.opening
            part = ShardTensors(
                order,
                self.stripe,
                self._newest,
                epoch=self.epoch,
                incarnation=self._own_incarnation,
                metrics=self._optimizer_metrics,
            )
            self._bench.open(part)
            self._loop.call_soon_threadsafe(self._opened, order)

    def _opened(self, order: pb.OpenPart) -> None:
        """On the event loop."""
        self._opening = order.opening
        elements = Layout.loads(order.layout_json).elements
        self._core.opened(order.job, elements, JobConfig.from_json(order.spec_json).plan().wire)
        hit_failpoint("shard.opened")
        self._report(pb.PartOpened(opening=order.opening))

    def _made(self, made: WeightsReady, updated: bool) -> None:
        """On the event loop: a chunk of weights is ready to be sent."""
        header = made.header
        if not self._core.made(header.job, Version(header.generation, header.step), made.chunks):
            return
        if updated:
            self._report(pb.UpdatedPart(step=header.step - 1, chunks=made.chunks))
        self._sessions.wake_all()

    async def write(self, piece: pb.ArrayPiece) -> None:
        """Take what a checkpoint holds.

        Raises:
            Refused: it belongs to another part, or nowhere in this one.
        """
        if piece.opening != self._opening:
            raise Refused(f"array {piece.array}: of opening {piece.opening}, expected {self._opening}")
        await self._loop.run_in_executor(self._kernel, self._put, piece)

    def _put(self, piece: pb.ArrayPiece) -> None:
        if self._bench.part is not None:
            put(piece, self._bench.part.arrays())
            hit_failpoint("shard.write.mid")
