"""The ports of a simulated aggregator and optimizer, with the checks that real ones make of what an insider sends.

A message of the insider passes a channel, where it may become a lie, and then the checks of the port.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from optimizer.core import events as optimizer_events
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import check_description
from services.errors import TiermeshError
from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.envelope import unwrap
from services.protocol.plain_text import make_printable
from services.tensors.chunk_messages import ChunkRefused, TensorChunk, bytes_per_element, check_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout, read_job_layout
from tests.insider.lies import Afterwards, Trick
from tests.simulation.job_model import require
from tests.simulation.links import Link, is_end
from tests.simulation.scenario import LIAR
from tests.simulation.simulated_aggregator import SimulatedAggregator
from tests.simulation.simulated_cluster import SimulatedCluster
from tests.simulation.simulated_optimizer import SimulatedOptimizer

if TYPE_CHECKING:
    from tests.insider.simulated import InsiderCluster


class Role(str, Enum):
    """Role of the insider."""

    WORKER = "worker"
    NEIGHBOUR = "neighbour"
    STANDBY = "standby"
    PERSON = "person"


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
                body = self._check_description(link, body)
        except Refused as refused:
            link.close(str(refused))
            self.worker_lost(link, str(refused))
            return
        if body is not None:
            super().worker_message(link, received.epoch, body)

    def _check_description(self, link: Link, body: pb.Description) -> pb.Description | pb.Failure | None:
        """Do as `WorkerControl` does."""
        parameters = self.core.awaits_description(link.session, body)
        if parameters is None:
            return None
        try:
            check_description(body.layout, body.files)
            if not self.cluster.has_files((body.layout, *body.files.values())):
                reason = "files of its Description are missing"
                return pb.Failure(job=body.job, lease=body.lease, reason=reason)
            read_job_layout(self.cluster.liar.files[body.layout.sha256], parameters)
        except TiermeshError as error:
            return pb.Failure(job=body.job, reason=str(error))
        return body

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
                wire = self.core.wire_type(header.job, header.kind)
                pieces = self.core.runs[header.job].plan.stages > 1
                check_chunk(chunk, elements, wire, pieces=pieces)
            except ChunkRefused as refused:
                link.close(str(refused))
                self.worker_lost(link, str(refused))
                return
            if (header.index, header.kind) != (true_header.index, true_header.kind):
                return  # a false tensor, which only verification finds
        super().worker_sent(link, header, payload)


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
