"""The simulated shard: it carries out the orders of its aggregator on symbolic payloads and weights.

Its bookkeeping is that of the real shard. Its kernel thread carries out orders on payloads later than they come.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from plane.bookkeeping import PlaneCore
from plane.messages import SequenceFilter, unwrap, wrap_report
from plane.sums import SumOrder
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.protocol.versions import Version
from services.tensors.stripes import Stripe
from services.transport.limits import HELLO_SECONDS
from tests.simulation.arrivals import Arrivals
from tests.simulation.job_model import CLUSTER, SimulatedJob, SimulationFailed, Sum, require, updated
from tests.simulation.links import Link, is_end
from tests.simulation.process import Process, Queue
from tests.simulation.scenario import CHUNKS_IN_FLIGHT
from tests.simulation.simulated_plane import send_version
from tests.simulation.simulated_sums import SimulatedSums

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster

ORDER_SECONDS = 0.004
"""Longest time of an order on the kernel thread."""


class ShardPart:
    """What a shard has of a job: weights and the staged sums of its chunks, by chunk."""

    def __init__(self, job: SimulatedJob, stripe: Stripe) -> None:
        self.job = job
        self.weights = dict.fromkeys(stripe.chunk_indices(job.elements), 0)
        self.staged: dict[int, Sum] = {}


class ShardSession:
    """What a shard keeps of the aggregator that it obeys.

    Args:
        link: the aggregator's connection.
        hello: its Hello.

    Attributes:
        core: the real shard's bookkeeping.
        sums: sums and pieces, on the kernel thread.
        finished: finished sums that are not staged yet, by job and chunk.
        parts: what it has of each job.
        openings: number of each job's newest OpenPart.
        newest: version and weights that can be sent, by job and chunk.
        workers: incarnations of the workers that attend, by session.
        streams: data streams of the workers, by session.
        arrivals: pieces that wait for a decision.
    """

    arrivals: Arrivals

    def __init__(self, link: Link, hello: cluster.Hello) -> None:
        self.link = link
        self.incarnation = hello.incarnation
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.core = PlaneCore(hello.epoch_seen, self.stripe)
        self.sums: defaultdict[str, SimulatedSums] = defaultdict(SimulatedSums)  # by job
        self.finished: dict[tuple[str, int], Any] = {}
        self.parts: dict[str, ShardPart] = {}
        self.openings: dict[str, int] = {}
        self.newest: dict[tuple[str, int], tuple[Version, int]] = {}
        self.workers: dict[int, str] = {}
        self.streams: dict[int, Link] = {}
        self.in_order = SequenceFilter()
        self.last_report = 0
        self.written: set[int] = set()  # openings whose checkpoint has come


class SimulatedShard(Process):
    """One life of a shard's process."""

    def __init__(self, cluster: SimulatedCluster, index: int, number: int) -> None:
        super().__init__(cluster, f"shard-{index}.{number}")
        self.index = index
        self._epoch = 0
        self.session: ShardSession | None = None
        self.waiting_work = 0  # orders that wait for the kernel thread
        self._kernel = Queue(self)

    # ---- the aggregator ----

    def ordered(self, link: Link, number: int, body: Any) -> None:
        """Handle an order of an aggregator."""
        if not self.alive:
            return
        session = self.session
        if is_end(number):
            link.ended(body)
        elif isinstance(unwrap(body), cluster.Hello):
            if session is None or session.link is not link:
                self._accept(link, body.hello)
        elif session is not None and session.link is link and session.in_order.is_new(number):
            self.cluster.trace(self.title, "<-", body)
            self._carry_out(session, unwrap(body))

    def _accept(self, link: Link, hello: cluster.Hello) -> None:
        session = self.session
        leader = session.incarnation if session is not None else ""
        own = (
            (session.stripe.index, session.stripe.count) if leader == hello.incarnation and session else None
        )
        expected = HelloExpectations(
            "shard", Role.AGGREGATOR, self._epoch, own, cluster=CLUSTER, leader=leader
        )
        refusal = check_hello(hello, expected)
        if refusal is not None:
            link.obeyed_epoch = refusal.obeyed_epoch
            link.close(refusal.reason)
            return
        if session is not None:
            session.link.close("another connection has taken over")
            self._end(session, "another connection of an aggregator")
        self._epoch = hello.epoch_seen
        session = self.session = ShardSession(link, hello)
        session.arrivals = Arrivals(self, partial(self._report, session))
        index, count = hello.shard_index, hello.shard_count
        answer = make_hello(
            Role.AGGREGATOR, f"shard-{self.index}", shard_index=index, shard_count=count, cluster=CLUSTER
        )
        self._report(self.session, answer)

    def aggregator_lost(self, link: Link) -> None:
        """Handle the loss of the link to the aggregator."""
        if self.session is not None and self.session.link is link:
            self._end(self.session, "the aggregator is lost")

    def _end(self, session: ShardSession, reason: str) -> None:
        """End a session: all payloads and tensors are dropped, and the workers' streams end."""
        self.session = None
        for stream in list(session.streams.values()):
            stream.close(reason)

    def _report(self, session: ShardSession, body: Message, payload: Any = None) -> None:
        if self.session is not session:
            return
        session.arrivals.tell()
        session.last_report += 1
        session.link.down_control.send(session.last_report, wrap_report(body), payload)

    # ---- orders ----

    def _carry_out(self, session: ShardSession, body: Message | None) -> None:
        """Do an order's work on the event loop, and give the rest to the kernel thread."""
        match body:
            case pb.KeepPieces():
                for arrival in body.arrivals:
                    header, payload = session.arrivals.pop(arrival)
                    self._later(session, partial(session.sums[header.job].keep_piece, header, payload))
            case pb.DiscardPieces():
                for arrival in body.arrivals:
                    session.arrivals.pop(arrival)
            case pb.SendVersion():
                send_version(session.core, body)
                self._pump_all(session)
            case pb.WorkerAttends():
                session.workers[body.session] = body.incarnation
                session.core.worker_attends(body.session)
            case pb.WorkerLeft():
                session.workers.pop(body.session, None)
                session.core.worker_left(body.session)
                stream = session.streams.pop(body.session, None)
                if stream is not None:
                    stream.close(body.reason)
            case cluster.Heartbeat():
                self._report(session, cluster.Heartbeat())
            case _ if isinstance(body, SumOrder | pb.FinishSum):
                self._later(session, partial(self._change_sums, session, body))
            case _:
                self._later(session, partial(self._change_part, session, body))

    def _later(self, session: ShardSession, work: Any) -> None:
        """Have the kernel thread do something, unless the session has ended by then."""
        self.waiting_work += 1
        self._kernel.submit(self.cluster.rng.random() * ORDER_SECONDS, self._work, session, work)

    def _work(self, session: ShardSession, work: Any) -> None:
        self.waiting_work -= 1
        if self.session is session:
            work()

    def _change_sums(self, session: ShardSession, order: SumOrder | pb.FinishSum) -> None:
        elements = session.core.expected_elements(order.job) or 0
        finished = session.sums[order.job].carry_out(order, elements)
        session.finished.update({(order.job, chunk): sum_ for chunk, sum_ in finished.items()})

    def _change_part(self, session: ShardSession, body: Any) -> None:
        """Carry out an order on weights and staged sums, on the kernel thread."""
        part = None if body is None else session.parts.get(body.job)
        match body:
            case pb.OpenPart() | pb.DropPart():
                self._drop(session, body.job)
                if isinstance(body, pb.OpenPart):
                    self._open(session, body)
            case pb.CopyPart() if part is None or part.job.id != body.job:
                reason = "no tensors of the job are here"
                self._report(session, pb.CopiedPart(job=body.job, copy=body.copy, reason=reason))
            case _ if part is None:
                pass  # a later OpenPart brings another one
            case pb.StageChunks(initial=True):
                for chunk in body.chunks:
                    part.weights[chunk] = session.finished.pop((body.job, chunk))
            case pb.StageChunks():
                staged = {chunk: session.finished.pop((body.job, chunk)) for chunk in body.chunks}
                part.staged.update(staged)
                chunks = [pb.StagedChunk(chunk=chunk) for chunk in staged]
                self._report(session, pb.StagedChunks(job=body.job, chunks=chunks), staged)
            case pb.UpdatePart():
                session.finished = {
                    each: kept for each, kept in session.finished.items() if each[0] != body.job
                }
                self._update(session, part, body)
            case pb.MakeWeights():
                self._publish(session, part, Version(body.generation, body.step), updated_step=None)
            case pb.CopyPart():
                session.link.down_data.send(body.copy, dict(part.weights))

    def _drop(self, session: ShardSession, job: str) -> None:
        session.parts.pop(job, None)
        session.openings.pop(job, None)
        session.newest = {each: kept for each, kept in session.newest.items() if each[0] != job}
        session.finished = {each: kept for each, kept in session.finished.items() if each[0] != job}
        session.core.drop_job(job)

    def _open(self, session: ShardSession, order: pb.OpenPart) -> None:
        job = self.cluster.jobs[order.job]
        session.openings[job.id] = order.opening
        session.parts[job.id] = ShardPart(job, session.stripe)
        session.core.open_job(job.id, job.elements, job.plan.wire, sends_pieces=job.pipeline is not None)
        self._report(session, pb.PartOpened(job=job.id, opening=order.opening))

    def _update(self, session: ShardSession, part: ShardPart, order: pb.UpdatePart) -> None:
        job, step = part.job, order.step
        for chunk, weights in part.weights.items():
            require(weights == job.weights[step][chunk], f"{self.title}: other weights than those of {step}")
            if order.applied:
                part.weights[chunk] = updated(weights, part.staged[chunk].key)
        part.staged.clear()
        self._publish(session, part, Version(order.generation, step + 1), updated_step=step)

    def _publish(
        self, session: ShardSession, part: ShardPart, version: Version, updated_step: int | None
    ) -> None:
        """Make weights ready to be sent, one chunk after the other."""
        for place, (chunk, weights) in enumerate(list(part.weights.items()), 1):
            ready = partial(self._ready, session, part.job.id, version, place, chunk, weights, updated_step)
            self.later(0.0, ready)

    def _ready(
        self,
        session: ShardSession,
        job: str,
        version: Version,
        chunks: int,
        chunk: int,
        weights: int,
        updated_step: int | None,
    ) -> None:
        if self.session is not session or not session.core.weights_ready(job, version, chunks):
            return
        session.newest[job, chunk] = version, weights
        if updated_step is not None:
            self._report(session, pb.UpdatedPart(job=job, step=updated_step, chunks=chunks))
        self._pump_all(session)

    def wrote(self, link: Link, opening: int, weights: dict[int, int]) -> None:
        """Write the weights of a checkpoint, and acknowledge them."""
        session = self.session
        if not self.alive or session is None or session.link is not link:
            return
        if opening in session.openings.values() and opening not in session.written:
            session.written.add(opening)
            self._later(session, partial(self._write, session, opening, weights))

    def _write(self, session: ShardSession, opening: int, weights: dict[int, int]) -> None:
        for job, part in session.parts.items():
            if session.openings[job] == opening:
                part.weights.update(weights)
        session.link.down_data.send(-opening, {})

    # ---- workers ----

    def open_stream(self, stream: Link, incarnation: str, deadline: float | None = None) -> None:
        """Serve a worker's data stream once the aggregator has announced the worker."""
        if not self.alive or not stream.up:
            return
        session, number = self.session, stream.session
        deadline = self.now + HELLO_SECONDS if deadline is None else deadline
        known = session is not None and session.workers.get(number) == incarnation
        if session is None or self.now > deadline:
            stream.close("unknown to this shard's aggregator")
        elif not known:
            self.later(0.05, self.open_stream, stream, incarnation, deadline)
        elif number not in session.streams:
            session.streams[number] = stream
            self._report(session, pb.WorkerExchanges(session=number))
            self._pump(session, stream)

    def chunk_arrived(self, stream: Link, header: ChunkHeader, payload: Any) -> None:
        """Report a worker's chunk, which waits for the aggregator's decision."""
        session = self.session
        if not self.alive or session is None or session.streams.get(stream.session) is not stream:
            return
        if session.core.check_chunk(stream.session, header) is not None:
            return
        require(session.stripe.contains(header.index), f"{self.title}: {header} is another shard's")
        session.arrivals.add(stream.session, header, payload)

    def stream_lost(self, stream: Link, reason: str) -> None:
        """Report the end of a worker's data stream."""
        session = self.session
        if session is not None and session.streams.get(stream.session) is stream:
            del session.streams[stream.session]
            session.workers.pop(stream.session, None)
            session.core.worker_left(stream.session)
            self._report(session, pb.WorkerGone(session=stream.session, reason=reason))

    def pump(self, stream: Link) -> None:
        """Send a worker the weights that it may get now."""
        if self.session is not None and self.session.streams.get(stream.session) is stream:
            self._pump(self.session, stream)

    def _pump_all(self, session: ShardSession) -> None:
        for stream in list(session.streams.values()):
            self._pump(session, stream)

    def _pump(self, session: ShardSession, stream: Link) -> None:
        while self.running and stream.up and stream.down_data.in_flight < CHUNKS_IN_FLIGHT:
            header = session.core.next_weights(stream.session)
            if header is None:
                return
            version, weights = session.newest[header.job, header.index]
            if version != (header.generation, header.step):
                raise SimulationFailed(f"{self.title} keeps weights of {version}, and is to send {header}")
            stream.down_data.send(header, weights)

    def thawed(self) -> None:
        """Continue after a freeze."""
        if self.session is not None:
            self._pump_all(self.session)
