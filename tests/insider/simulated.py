"""A simulated cluster with an insider: a worker, a neighbour in a row, or a standby that lies.

The insider is the simulated worker that others are, and its messages are changed on their way. What arrives passes the
same checks as at a real port. The honest workers must finish the job in the bits of an undisturbed run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from aggregator.core.events import Note
from optimizer.core import events as optimizer_events
from protos import cluster_pb2 as pb
from protos import pipeline_pb2 as pipeline
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import check_file_names
from services.config.job import MOST_SPEC_BYTES
from services.errors import TiermeshError
from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.envelope import unwrap
from services.protocol.file_refs import MAX_TEXT_BYTES, check_ref, make_ref
from services.protocol.plain_text import make_printable
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.chunk_messages import ChunkRefused, TensorChunk, bytes_per_element, check_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.timeouts import STANDARD_TIMEOUTS
from tests.insider.held import count_held
from tests.insider.lies import Afterwards, Liar, Trick
from tests.simulation.job_model import CLUSTER, SimulationFailed, require
from tests.simulation.links import Link, is_end
from tests.simulation.pipeline_model import KINDS
from tests.simulation.process import Process
from tests.simulation.row_links import LinkEnd, LinkState, RowConnection, RowLinks, SentPiece
from tests.simulation.scenario import LIAR, Scenario
from tests.simulation.simulated_aggregator import SimulatedAggregator
from tests.simulation.simulated_cluster import SimulatedCluster
from tests.simulation.simulated_device import LeaseState
from tests.simulation.simulated_optimizer import SimulatedOptimizer
from tests.simulation.simulated_worker import SimulatedWorker
from worker.core.lanes import Position

HELD_BYTES = (1 << 16) + MOST_SPEC_BYTES
"""Largest size of what a role's core keeps, one spec included. Undisturbed runs of these jobs keep far less."""
MOST_SECONDS = 5 * STANDARD_TIMEOUTS.stall
"""Longest run. An insider may have a few leases be late, one after the other."""
UNEXPLAINED_SECONDS = 60.0
"""Longest time without progress that `status` does not explain."""


class Role(str, Enum):
    """Role of the insider."""

    WORKER = "worker"
    NEIGHBOUR = "neighbour"
    STANDBY = "standby"


class Refused(Exception):
    """A message that a port refuses, and the reason."""


def passed_on(message: Message) -> Any:
    """Return a message as it comes out of a control stream, which checks it.

    Raises:
        Refused: it is larger than a bound.
    """
    received = type(message).FromString(message.SerializeToString())
    make_printable(received)
    try:
        check_received(received)
    except MessageTooLarge as error:
        raise Refused(error.fault) from None
    return received


class Channel:
    """The insider's messages in one direction of one connection: what is told in their place, in order, perhaps late.

    Args:
        cluster: the cluster.
        end: breaks the connection.
    """

    def __init__(self, cluster: InsiderCluster, end: Callable[[], None]) -> None:
        self._cluster = cluster
        self._end = end
        self._free_at = 0.0

    def send(self, message: Message, take: Callable[[Any, bool], None]) -> None:
        """Pass a message on, or what is told in its place.

        Args:
            message: the message.
            take: handles a message, and whether it was changed.
        """
        cluster = self._cluster
        lie = cluster.liar.tell(message)
        if lie is None:
            self._deliver(take, message, False)
            return
        cluster.trace(LIAR, "!!", str(lie))
        cluster.injected[f"{cluster.role.value}: {lie.trick.value}"] += 1
        self._free_at = max(self._free_at, cluster.loop.now) + lie.delay_seconds
        for each in lie.messages:
            self._deliver(take, each, lie.trick is Trick.FIELD or each is not message)
        if lie.resets:
            self._end()
        if cluster.liar.afterwards is Afterwards.LEAVES:
            cluster.leave()

    def _deliver(self, take: Callable[[Any, bool], None], message: Message, changed: bool) -> None:
        now = self._cluster.loop.now
        if self._free_at <= now:
            take(message, changed)
        else:
            self._cluster.loop.at(self._free_at, take, message, changed)


class InsiderAggregator(SimulatedAggregator):
    """An aggregator whose port checks what the insider sends."""

    cluster: InsiderCluster

    def __init__(self, cluster: SimulatedCluster, epoch: int) -> None:
        self._channels: dict[Link, tuple[Channel, Channel]] = {}
        super().__init__(cluster, epoch)

    def _channels_of(self, link: Link) -> tuple[Channel, Channel]:
        if link not in self._channels:
            self._channels[link] = Channel(self.cluster, link.cut), Channel(self.cluster, link.cut)
        return self._channels[link]

    def worker_message(self, link: Link, epoch: int, body: Any) -> None:
        """Handle a control message from a worker; of the insider, what it tells in its place."""
        if is_end(epoch) or not self.cluster.lies(link, Role.WORKER):
            super().worker_message(link, epoch, body)
            return
        envelope = pb.WorkerMessage(epoch=epoch)
        name = next(
            each.name for each in pb.WorkerMessage.DESCRIPTOR.fields if each.message_type is body.DESCRIPTOR
        )
        getattr(envelope, name).CopyFrom(body)
        self._channels_of(link)[0].send(envelope, lambda message, _: self._take(link, message))

    def _take(self, link: Link, message: pb.WorkerMessage) -> None:
        if not self.alive or not link.up_control.open:
            return
        try:
            received = passed_on(message)
            body = unwrap(received)
            if link.session not in self.sessions:
                if not isinstance(body, pb.Hello):
                    raise Refused("the first message must be Hello")
                if (body.role, body.name) != ("worker", LIAR):
                    raise Refused("the certificate is another worker's")
            elif isinstance(body, pb.Hello):
                return  # the core takes no notice of it
            elif isinstance(body, pb.Description):
                body = self._check_description(body)
        except Refused as refused:
            link.close(str(refused))
            self.worker_lost(link, str(refused))
            return
        if body is not None:
            super().worker_message(link, received.epoch, body)

    def _check_description(self, body: pb.Description) -> pb.Description | pb.Failure:
        """Do as `WorkerControl` does."""
        refs = (body.layout, *body.files.values())
        try:
            check_file_names(body.files)
            if not any(check_ref(ref, MAX_TEXT_BYTES) for ref in refs) and self.cluster.has_files(refs):
                return body
            reason = "files are missing or too large"
        except TiermeshError as error:
            reason = str(error)
        return pb.Failure(job=body.job, lease=body.lease, reason=reason)

    def worker_sent(self, link: Link, header: ChunkHeader | None, payload: Any) -> None:
        """Handle a worker's chunk; of the insider, what it sends in its place."""
        if header is None or not self.cluster.lies(link, Role.WORKER):
            super().worker_sent(link, header, payload)
            return
        size = header.elements * bytes_per_element(header.dtype)
        self._channels_of(link)[1].send(
            header,
            lambda told, changed: self._take_chunk(link, told, payload, (header, size) if changed else None),
        )

    def _take_chunk(
        self, link: Link, header: ChunkHeader, payload: Any, true: tuple[ChunkHeader, int] | None
    ) -> None:
        """Do as `WorkerDataStreams` does.

        Args:
            link: the connection.
            header: the header, which may be a lie.
            payload: the true payload.
            true: the true header, and the size of the payload in bytes; None if the header is no lie.
        """
        if not self.alive or link.session not in self.sessions:
            return
        if true is not None:
            true_header, size = true
            elements = self.core.expected_elements(header.job)
            if self.core.check_chunk(link.session, header) is not None or elements is None:
                return
            memory: Any = _Intact()
            chunk = TensorChunk(header, _ZEROS[:size], memory=memory)
            try:
                wire, pieces = self.core.wire_type(header.kind), self.core.sends_pieces()
                check_chunk(chunk, elements, wire, pieces=pieces)
            except ChunkRefused as refused:
                link.close(str(refused))
                self.worker_lost(link, str(refused))
                return
            if (header.index, header.kind) != (true_header.index, true_header.kind):
                return  # a false tensor, which only verification finds
        super().worker_sent(link, header, payload)


_CONFIG = make_ref(b"{}")
_ZEROS = memoryview(bytes(4 * CHUNK_ELEMENTS))


class _Intact:
    """Memory of a payload that nobody overwrites."""

    def is_marked(self, place: int, sequence: int) -> bool:
        return True


class InsiderOptimizer(SimulatedOptimizer):
    """An optimizer that reads the layouts that it is told to allocate."""

    cluster: InsiderCluster

    def _carry_out(self, effect: Any, payload: Any) -> None:
        if isinstance(effect, optimizer_events.Load) and effect.job not in self.cluster.jobs:
            self.feed(optimizer_events.OperationFailed(effect.job, "its spec is not here"))
            return
        if isinstance(effect, optimizer_events.Allocate):
            try:
                self._check_layout(effect)
            except (ValueError, KeyError) as error:
                self.feed(optimizer_events.OperationFailed(effect.job, f"layout: {error}"))
                return
        super()._carry_out(effect, payload)

    def _check_layout(self, effect: optimizer_events.Allocate) -> None:
        """Do as `JobFiles` does, and check the size of what is allocated.

        Raises:
            ValueError: the layout is refused.
        """
        layout = Layout.loads(self.cluster.liar.files[effect.layout.sha256].decode())
        job = self.cluster.jobs[effect.job]
        if not layout.elements or layout.hash != effect.layout.sha256:
            raise ValueError("not in its canonical form")
        require(
            layout.elements <= job.elements,
            f"{layout.elements} elements are allocated for {job.id}, which has {job.elements}",
        )
        require(layout.hash == job.layout.hash, f"{job.id} gets another layout")


class InsiderEnd(LinkEnd):
    """An end of a link in a row, which checks what the insider sends."""

    _channel: Channel | None = None
    _channel_of: RowConnection | None = None

    def received(self, connection: RowConnection, message: LinkState | SentPiece) -> None:
        """Handle what has arrived on a connection; of the insider, what it tells in its place."""
        cluster: Any = self.worker.cluster
        if self.seat.name != LIAR or cluster.role is not Role.NEIGHBOUR:
            self._take(connection, message, None)
            return
        if self._channel is None or self._channel_of is not connection:
            self._channel, self._channel_of = Channel(cluster, connection.cut), connection
        self._channel.send(
            _encode(message), lambda told, changed: self._take(connection, message, told if changed else None)
        )

    def _take(self, connection: RowConnection, true: LinkState | SentPiece, told: Any) -> None:
        """Take a message, or what was told in its place, and break the connection if it is wrong, as `Link` does."""
        cluster: Any = self.worker.cluster
        try:
            message = true if told is None else _decode(told, true)
            super().received(connection, message)
        except (TiermeshError, SimulationFailed, Refused):
            if not cluster.liar.lies:
                raise
            connection.cut()


def _encode(message: LinkState | SentPiece) -> Message:
    """Return a message between neighbours as it is on the wire, without what the simulation does not know."""
    if isinstance(message, SentPiece):
        kind = KINDS.index(message.array.kind) + 1
        return pipeline.ArrayHeader(
            lease=message.array.lease, kind=kind, number=message.number, offset_bytes=message.start
        )
    state = pipeline.LinkState(job=message.row[0], row=message.row[1])
    for kind, position in message.lanes.items():
        state.lanes.add(kind=KINDS.index(kind) + 1, **position._asdict())
    return state


def _decode(told: Any, true: LinkState | SentPiece) -> LinkState | SentPiece:
    """Return a message from the wire.

    Raises:
        Refused: it is none of this link.
    """
    try:
        check_received(told)
        if isinstance(true, LinkState):
            if (told.job, told.row) != true.row:
                raise Refused("the state is of another row")
            fields = Position._fields
            lanes = {
                KINDS[each.kind - 1]: Position(*(getattr(each, name) for name in fields))
                for each in told.lanes
                if each.kind
            }
            return LinkState(true.row, lanes)
        if told.kind != KINDS.index(true.array.kind) + 1:
            raise Refused("an array of another kind, whose shape differs")
    except (MessageTooLarge, IndexError) as error:
        raise Refused(str(error)) from None
    size = true.stop - true.start
    array = true.array._replace(lease=told.lease) if told.lease != true.array.lease else true.array
    return true._replace(
        number=told.number, array=array, start=told.offset_bytes, stop=told.offset_bytes + size
    )


class InsiderRowLinks(RowLinks):
    """Links of a worker to its neighbours, one of which may be the insider."""

    end_type = InsiderEnd

    def take_wrong(self, state: LeaseState, end: LinkEnd | None, what: str) -> None:
        """Fail the lease, as `LeaseExchange` does: the neighbour has sent something else than is due."""
        cluster: Any = self.worker.cluster
        require(cluster.liar.lies and end is not None, what)
        if end is not None and not state.failed:
            state.failed = True
            self.worker.lose_neighbour(state.lease, end.seat.name)


class Neighbour(SimulatedWorker):
    """A worker that may have the insider as its neighbour."""

    row_links_type = InsiderRowLinks


class LyingWorker(Neighbour):
    """The insider as a worker. It computes as others do, and when orders make it fail, it leaves."""

    cluster: InsiderCluster

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lies = 0.0

    def feed(self, *inputs: Any) -> None:
        """Give the core an input."""
        self._try(super().feed, inputs)

    def pump(self) -> None:
        """Send the chunks that may be sent now."""
        self._try(super().pump, ())

    def ordered(self, *order: Any) -> None:
        """Handle an order."""
        self._try(super().ordered, order)

    def _if_alive(self, *call: Any) -> None:
        self._try(super()._if_alive, call)

    def _try(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            call(*arguments)
        except (SimulationFailed, TiermeshError, KeyError) as error:
            if not self.cluster.liar.lies:
                raise
            self.cluster.trace(self.title, "!!", str(error))
            self.cluster.leave()


class LyingStandby(Process):
    """The insider as a standby: with an aggregator's certificate, it gives orders to the optimizer now and then."""

    MOST_ORDERS = 8

    cluster: InsiderCluster

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster, "standby")
        self.epoch = 0
        self.later(20 * self.cluster.liar.draw.random(), self._dial)

    def _dial(self) -> None:
        optimizer, leader, draw = self.cluster.optimizer, self.cluster.aggregator, self.cluster.liar.draw
        if self.cluster.liar.told and self.cluster.liar.afterwards is not Afterwards.AGAIN:
            return
        if (
            optimizer is None
            or not optimizer.alive
            or leader is None
            or self.cluster.commits < draw.randrange(4)
        ):
            self.later(1.0, self._dial)
            return
        link = Link(self.cluster, 0)
        link.connect(
            up_control=lambda epoch, body: self._arrive(optimizer, link, epoch, body),
            up_data=lambda header, payload: None,
            down_control=lambda epoch, body: (
                link.closed(body) if is_end(epoch) else self.cluster.liar.learn(body)
            ),
            down_data=lambda header, payload: None,
            lost_above=lambda reason: optimizer.link_lost(link),
            lost_below=lambda reason: None,
            ends=(optimizer, self),
        )
        self.cluster.links.append(link)
        self.epoch = min(max(0, leader.epoch + draw.choice((-1, 0, 1, 1, 1, 100))), (1 << 64) - 1)
        hello = pb.Hello(
            protocol=PROTOCOL_VERSION, role="aggregator", name="standby", incarnation="standby", shard_count=1,
            epoch_seen=self.epoch, cluster=CLUSTER,
        )  # fmt: skip
        liar = self.cluster.liar
        liar.learn(pb.Open(job=next(iter(self.cluster.jobs)), generation=1))
        liar.told.append(f"as a standby: {hello}")
        self.cluster.injected["standby: connects"] += 1
        link.up_control.send(self.epoch, hello)
        for _ in range(draw.randrange(self.MOST_ORDERS)):
            order: Any = liar.make_up(pb.OptimizerCommand.DESCRIPTOR)
            if order.HasField("initialise"):
                continue  # a holder of an aggregator's certificate can make a job fail by it
            liar.told.append(str(order))
            link.up_control.send(self.epoch, unwrap(order))
        self.later(draw.choice((0.5, 30.0)), self._hang_up, link)

    def _hang_up(self, link: Link) -> None:
        link.abandon("its time is over")
        self.later(10.0 + 60 * self.cluster.liar.draw.random(), self._dial)

    @staticmethod
    def _arrive(optimizer: SimulatedOptimizer, link: Link, epoch: int, body: Any) -> None:
        if not is_end(epoch):
            if body is None or (isinstance(body, pb.Hello) and link is optimizer.link):
                return
            try:
                body = passed_on(body)
            except Refused as refused:
                link.close(str(refused))
                optimizer.link_lost(link)
                return
        optimizer.ordered(link, epoch, body)


class InsiderCluster(SimulatedCluster):
    """One run of a seed with an insider.

    Args:
        seed: source of all decisions.
        role: role of the insider; None draws it.
        tricks: lies that it may tell.
        kind: kind of message that it lies about; empty draws it.
        field: name of the field that it lies about; empty draws it.
        rows: whether jobs may have a pipeline.
        tracing: whether to print inputs and effects.

    Attributes:
        role: role of the insider.
        liar: what it lies about.
    """

    distrusted = LIAR
    aggregator_type = InsiderAggregator
    optimizer_type = InsiderOptimizer
    aggregator: InsiderAggregator | None

    def __init__(
        self,
        seed: int,
        *,
        role: Role | None = None,
        tricks: Sequence[Trick] = tuple(Trick),
        kind: str = "",
        field: str = "",
        rows: bool = True,
        tracing: bool = False,
    ) -> None:
        super().__init__(seed, scenario=Scenario.with_insider(seed, rows=rows), tracing=tracing)
        draw = random.Random(f"role of {seed}")
        self.role = role or draw.choice(self._possible_roles())
        spared = frozenset({"lease"}) if self.role is Role.STANDBY else frozenset()
        self.liar = Liar(seed, tricks=tricks, spared=spared, kind=kind, field=field)
        self.liar.files = {job.layout_ref.sha256: job.layout.dumps().encode() for job in self.scenario.jobs}
        self.liar.files[_CONFIG.sha256] = b"{}"
        self.most_held_bytes = 0
        self._start_seconds = draw.choice((0.0, 20.0)) * draw.random()  # half of the time it is the first
        self._gone = False

    @property
    def _has_rows(self) -> bool:
        return any(job.pipeline is not None for job in self.scenario.jobs)

    def _possible_roles(self) -> list[Role]:
        roles = [Role.WORKER] * 3
        roles += [Role.NEIGHBOUR] * 2 * self._has_rows
        return roles + [Role.STANDBY] * (self.scenario.tiers == 3)

    def run(self) -> None:
        """Run until every job has ended, and check that the insider changed nothing of the result."""
        if self.role is Role.STANDBY:
            LyingStandby(self)
        else:
            self.loop.at(self._start_seconds, self._start_worker, LIAR)
            self.loop.at(10.0, self._decide)
        super().run()

    def worker_type(self, name: str) -> type[SimulatedWorker]:
        """Return the type of a worker of this name."""
        return LyingWorker if name == LIAR else Neighbour

    def lies(self, link: Link, role: Role) -> bool:
        """Return whether what comes over a link is the insider's, and it lies in this role."""
        return self.role is role and getattr(link.ends[1], "name", "") == LIAR

    def has_files(self, refs: Any) -> bool:
        """Return whether workers have uploaded these files."""
        return all(ref.sha256 in self.liar.files for ref in refs)

    def leave(self) -> None:
        """Let the insider leave for good."""
        self._gone = True
        worker = self.workers.get(LIAR)
        if worker is not None and worker.alive:
            worker.alive = False
            self._cut_links_of(worker)

    def _start_worker(self, name: str, fingerprint: str = "same") -> None:
        if name != LIAR or not self._gone:
            super()._start_worker(name, fingerprint)

    def noted(self, note: Note) -> None:
        """Check a report of the aggregator. The insider may be named for a hang that it has only told."""
        if not note.text.startswith(f"worker {LIAR}: "):
            super().noted(note)

    def obeyed(self, peer: str, leader: Any) -> None:
        """Check that an epoch which a worker or optimizer obeys is one aggregator's alone, but for a lying standby."""
        if not isinstance(leader, LyingStandby):
            super().obeyed(peer, leader)

    def _watch(self) -> None:
        """Check that the cluster makes progress, explains its waits, and keeps no more than its bound."""
        for process in (self.aggregator, self.optimizer, *self.workers.values()):
            if process is not None and process.alive and not isinstance(process, LyingWorker):
                held = count_held(process.core)
                self.most_held_bytes = max(held, self.most_held_bytes)
                require(
                    held <= HELD_BYTES, f"{process.title} keeps {held} bytes, expected at most {HELD_BYTES}"
                )
        most_seconds = MOST_SECONDS * (10 if self._has_rows else 1)
        require(
            self.loop.now < most_seconds,
            f"the insider holds the job up for {self.loop.now:.0f} virtual seconds",
        )
        idle = self.loop.now - self._progress_seconds
        leader = self.aggregator
        if idle > UNEXPLAINED_SECONDS and leader is not None and leader.alive and leader.core.run is not None:
            status = leader.core.status(leader.now)
            details = any(each.detail for each in status.workers)
            require(
                status.waiting or status.waits or details,
                f"no progress for {idle:.0f} virtual seconds, and status does not say why",
            )
        super()._watch()

    def patience_seconds(self) -> float:
        """Return how long there may be no progress: a lease that is late is given to others, twice."""
        return super().patience_seconds() + (6 if self._has_rows else 2) * STANDARD_TIMEOUTS.stall

    def _end_faults(self) -> None:
        """End all faults. The insider goes on, so the rest of the run has another bound."""
        self.faults.end()
