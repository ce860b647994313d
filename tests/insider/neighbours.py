"""The insider as a worker, with the links to its neighbours in a row.

What a neighbour takes from it passes the checks of a real link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from protos import pipeline_pb2 as pipeline
from services.errors import TiermeshError
from services.protocol.bounds import MessageTooLarge, check_received
from tests.insider.ports import Channel, Refused, Role
from tests.simulation.job_model import SimulationFailed, require
from tests.simulation.pipeline_model import KINDS
from tests.simulation.row_links import LinkEnd, LinkState, RowConnection, RowLinks, SentPiece
from tests.simulation.scenario import LIAR
from tests.simulation.simulated_device import LeaseState
from tests.simulation.simulated_worker import SimulatedWorker
from worker.core.lanes import Position
from worker.pipeline.link import MOST_REFUSALS

if TYPE_CHECKING:
    from tests.insider.simulated import InsiderCluster


class InsiderEnd(LinkEnd):
    """An end of a link in a row, which checks what the insider sends."""

    refusals = 0
    """Refused messages without an array between them."""
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
            self.refusals += 1
            connection.cut()
        else:
            if isinstance(message, SentPiece):
                self.refusals = 0


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
    ends: dict[str, InsiderEnd]

    def take_wrong(self, state: LeaseState, end: LinkEnd | None, what: str) -> None:
        """Fail the lease, as `LeaseExchange` does: the neighbour has sent something else than is due."""
        cluster: Any = self.worker.cluster
        require(cluster.liar.lies and end is not None, what)
        if end is not None and not state.failed:
            state.failed = True
            self.worker.lose_neighbour(state.lease, end.seat.name)

    def lost_neighbour(self) -> str:
        """Return the name of a neighbour that can't be reached for long, or sends what is refused, as `Link` does."""
        refused = (name for name, end in self.ends.items() if end.refusals >= MOST_REFUSALS)
        return super().lost_neighbour() or next(refused, "")


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
