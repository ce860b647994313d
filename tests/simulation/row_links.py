"""Links between the simulated workers of a row. Their ends are the lanes of the real worker.

The worker of the later stages opens a connection to that of the earlier ones. Each end first says what it has received,
and then sends its arrays in pieces. A broken connection is opened again, as long as both are in the same row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from protos import cluster_pb2 as pb
from services.pipeline.credits import Credits
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.job_model import SimulationFailed, require
from tests.simulation.network import Pipe
from tests.simulation.pipeline_model import KINDS, ArrayKind, PassArray, SimulatedPipeline
from tests.simulation.scenario import ROW_SKEW
from worker.core.lanes import Overtaken, Position, ReceivingLane, SendingLane

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster
    from tests.simulation.simulated_device import LeaseState
    from tests.simulation.simulated_worker import SimulatedWorker

PIECES_IN_FLIGHT = 3
"""Pieces in flight at which a link makes its writer wait."""
MOST_PIECES = 3
"""Largest number of pieces of an array. Sizes count pieces: one has 1 byte."""


RowKey: TypeAlias = tuple[str, int]
"""A job, and the id of a row in it."""
NO_ROW: RowKey = ("", 0)


class LinkState(NamedTuple):
    """What an end has received: for each kind, see `Position`."""

    row: RowKey
    lanes: dict[ArrayKind, Position]


class SentPiece(NamedTuple):
    """A piece of an array on its way."""

    number: int
    array: PassArray
    size_bytes: int
    start: int
    stop: int


@dataclass
class Arriving:
    """An array of which at least one piece has arrived."""

    array: PassArray


class RowConnection:
    """One connection between two workers of a row. Faults may cut it and hold it back, as those of other links.

    Attributes:
        ends: the worker of the earlier stages, and that of the later ones, which has opened it.
        up: whether both ends use it.
        local: see `Link`.
    """

    local = False

    def __init__(self, cluster: SimulatedCluster, opened_to: LinkEnd, opened_by: LinkEnd) -> None:
        self.ends = (opened_to.worker, opened_by.worker)
        self.up = True
        self._cluster = cluster
        self._both = (opened_to, opened_by)
        seconds = cluster.scenario.data_seconds * cluster.rng.choice(
            tuple(min(each, ROW_SKEW) for each in cluster.scenario.skews)
        )
        self._pipes = {
            end: Pipe(
                cluster.loop,
                cluster.rng,
                lambda message, end=end: end.received(self, message),
                receiver=end.worker,
                seconds=seconds,
                injected=cluster.injected,
            )
            for end in self._both
        }

    @property
    def names(self) -> frozenset[str]:
        """Names of both workers."""
        return frozenset(each.name for each in self.ends)

    def other(self, end: LinkEnd) -> LinkEnd:
        """Return the other end."""
        return self._both[end is self._both[0]]

    def pipe_from(self, end: LinkEnd) -> Pipe:
        """Return the pipe that an end writes to."""
        return self._pipes[self.other(end)]

    def cut(self) -> None:
        """Break the connection. Each end notices at its own time."""
        if not self.up:
            return
        self.up = False
        for end, pipe in self._pipes.items():
            pipe.cut()
            end.worker.later(4 * self._cluster.rng.random() ** 3, end.lost, self)

    def hold(self, seconds: float, *, up: bool, down: bool) -> None:
        """Hold back all messages in these directions for this long."""
        for held, end in ((down, self._both[1]), (up, self._both[0])):
            if held:
                self._pipes[end].hold(self._cluster.loop.now + seconds)

    def silent(self, until: float) -> None:
        """Leave heartbeats unanswered; `RowLinks.beat` notices it."""


class LinkEnd:
    """What one worker keeps of its link to another worker of the row.

    Args:
        links: the worker's links.
        seat: the other worker's seat.
        dials: whether this end opens the connections.
        credits: credits of the lanes, by kind.
    """

    def __init__(self, links: RowLinks, seat: pb.RowSeat, dials: bool, credits: dict[ArrayKind, int]) -> None:
        self.worker = links.worker
        self.row = links.row
        self.seat = seat
        self.without_since: float | None = self.worker.cluster.loop.now
        self.sending = {kind: SendingLane[PassArray](credits[kind], 1) for kind in KINDS}
        self.receiving = {kind: ReceivingLane[Arriving](credits[kind], MOST_PIECES) for kind in KINDS}
        self._links = links
        self._dials = dials
        self._connection: RowConnection | None = None
        self._heard = False
        self.heard_seconds = 0.0
        self._acknowledged: dict[ArrayKind, int] = {}

    def open(self) -> None:
        """Connect to the other worker, and retry until it is in this row too."""
        if not self.is_current or not self._dials or self._connection is not None:
            return
        peer = self.worker.cluster.workers.get(self.seat.name)
        other = None if peer is None or not peer.alive else peer.row_links.end_of(self.row, self.worker.name)
        parted = self.worker.cluster.faults.are_parted(frozenset((self.seat.name, self.worker.name)))
        if other is None or parted:
            self.worker.later(0.05 + self.worker.cluster.rng.random(), self.open)
            return
        connection = RowConnection(self.worker.cluster, other, self)
        self.worker.cluster.links.append(connection)
        self._use(connection)

    @property
    def is_current(self) -> bool:
        """Whether the worker is still in the row."""
        return self._links.ends.get(self.seat.name) is self

    def _use(self, connection: RowConnection) -> None:
        """Use a connection from now on, and say first what has arrived."""
        if self._connection is not None:
            self._connection.cut()
        self._connection, self._heard = connection, False
        self.heard_seconds = self.worker.now
        self.say_state()

    def say_state(self) -> None:
        """Tell the other end what has arrived and what was taken."""
        if self._connection is not None:
            lanes = {kind: lane.position for kind, lane in self.receiving.items()}
            self._acknowledged = {kind: each.taken for kind, each in lanes.items()}
            self._connection.pipe_from(self).send(LinkState(self.row, lanes))

    def received(self, connection: RowConnection, message: LinkState | SentPiece) -> None:
        """Handle what has arrived on a connection."""
        if not self.worker.alive or not self.is_current:
            connection.cut()
            return
        if connection is not self._connection:
            if self._dials or not connection.up or not isinstance(message, LinkState):
                return
            self._use(connection)
        self.heard_seconds, self.without_since = self.worker.now, None
        if isinstance(message, SentPiece):
            self._take_piece(message)
        else:
            self._take_state(message)
        self.pump()
        self.worker.device.wake()

    def _take_state(self, state: LinkState) -> None:
        require(state.row == self.row, f"{self.worker.title}: a link of row {state.row} in row {self.row}")
        for kind, position in state.lanes.items():
            if self._heard:
                self.sending[kind].note_taken(position.taken)
            else:
                self.sending[kind].reconnect(position)
        self._heard = True

    def _take_piece(self, piece: SentPiece) -> None:
        array = piece.array
        arriving = self.receiving[array.kind].accept(
            array.lease, piece.number, piece.size_bytes, piece.start, piece.stop, lambda: Arriving(array)
        )
        require(
            arriving is None or arriving.array is array,
            f"{self.worker.title}: a piece of {array} is put into another array",
        )
        self.note_takes()

    def note_takes(self) -> None:
        """Tell the other end of arrays that were taken or dropped, if it does not know."""
        taken = {kind: lane.taken for kind, lane in self.receiving.items()}
        if taken != self._acknowledged:
            self.say_state()

    def pump(self) -> None:
        """Send the pieces that may be sent now."""
        connection = self._connection
        if connection is None or not self._heard or not self.worker.running:
            return
        pipe = connection.pipe_from(self)
        for lane in self.sending.values():
            while connection.up and pipe.in_flight < PIECES_IN_FLIGHT and (piece := lane.next_piece()):
                array = piece.array
                pipe.send(SentPiece(piece.number, array, size_of(array), piece.start, piece.stop))
        if pipe.in_flight >= PIECES_IN_FLIGHT:
            self.worker.later(0.01, self.pump)

    def lost(self, connection: RowConnection) -> None:
        """Notice that a connection is broken."""
        if connection is not self._connection:
            return
        self._connection, self._heard = None, False
        if self.without_since is None:
            self.without_since = self.worker.cluster.loop.now
        self.open()

    def abandon(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.cut()


def size_of(array: PassArray) -> int:
    """Return the size of an array, which follows from what it is."""
    return 1 + hash(array.to) % MOST_PIECES


class RowLinks:
    """A worker's links to the other workers of its row.

    Attributes:
        worker: the worker.
        row: the row; NO_ROW for none.
        ends: its ends of the links to its neighbours, by their names.
        run: its stages.
    """

    end_type: type[LinkEnd] = LinkEnd

    def __init__(self, worker: SimulatedWorker) -> None:
        self.worker = worker
        self.row = NO_ROW
        self.ends: dict[str, LinkEnd] = {}
        self.run = StageRun(0, 1)
        self._seats: list[pb.RowSeat] = []

    def set_row(self, row: pb.Row | None, pipeline: SimulatedPipeline | None) -> None:
        """Enter a row, or leave it."""
        if row is not None and (row.job, row.row) == self.row:
            return
        former, self.ends = self.ends, {}
        for end in former.values():
            end.abandon()
        self.row, self._seats = NO_ROW, []
        if row is None or pipeline is None:
            return
        self.row, self._seats = (row.job, row.row), list(row.seats)
        own = next(seat for seat in row.seats if seat.name == self.worker.name)
        self.run = StageRun(own.first_stage, own.stages)
        shares = len(row.seats) < pipeline.stages
        chosen = Credits.choose(pipeline.kind, pipeline.stages, shares_workers=shares)
        credits: dict[ArrayKind, int] = {
            "activation": chosen.activations,
            "gradient": chosen.gradients,
            "tied": chosen.tied,
        }
        place, count = self._seats.index(own), len(self._seats)
        neighbours = {
            (place - 1) % count,
            (place + 1) % count,
        }  # the first and the last one are neighbours too
        for index, seat in enumerate(self._seats):
            if index in neighbours and index != place:
                dials = seat.first_stage < own.first_stage
                self.ends[seat.name] = self.end_type(self, seat, dials, credits)
        for end in list(self.ends.values()):
            end.open()

    def end_of(self, row: RowKey, name: str) -> LinkEnd | None:
        """Return the end of the link to a worker of a row, as long as this worker is in it."""
        return self.ends.get(name) if row == self.row else None

    def end_to(self, stage: int) -> LinkEnd | None:
        """Return the end of the link to a stage's worker; None if the stage is this worker's."""
        seat = next(
            each for each in self._seats if each.first_stage <= stage < each.first_stage + each.stages
        )
        return self.ends.get(seat.name)

    def open_lease(self, lease: int) -> None:
        """Begin a lease. What may still come of earlier ones is dropped."""
        self.close_lease(lease - 1)

    def close_lease(self, lease: int) -> None:
        """End the passes of a lease. What was sent is still delivered."""
        for end in self.ends.values():
            for lane in end.receiving.values():
                lane.drop(lease)
            end.note_takes()

    def drop(self, lease: int) -> None:
        """Drop the lease that is under way."""
        for end in self.ends.values():
            for lane in end.sending.values():
                lane.drop(lease)
        self.close_lease(lease)

    def take_wrong(self, state: LeaseState, end: LinkEnd | None, what: str) -> None:
        """Handle an array that was taken for the wrong pass."""
        raise SimulationFailed(what)

    def lost_neighbour(self) -> str:
        """Return the name of a worker of the row that can't be reached for long; empty for none."""
        now = self.worker.cluster.loop.now
        for name, end in self.ends.items():
            if end.without_since is not None and now - end.without_since > STANDARD_TIMEOUTS.deaf:
                return name
        return ""

    def beat(self) -> None:
        """Show the other workers that this one lives, and give up connections that are silent."""
        for end in self.ends.values():
            end.say_state()
            if self.worker.now - end.heard_seconds > STANDARD_TIMEOUTS.deaf:
                end.abandon()
        if self.lost_neighbour():
            self.worker.device.wake()

    @staticmethod
    def take(end: LinkEnd, kind: ArrayKind, lease: int) -> PassArray | None:
        """Return the next array of a lease; None if there is none yet."""
        try:
            arriving = end.receiving[kind].take(lease)
        except Overtaken:
            return None  # the aggregator will revoke the lease
        if arriving is None:
            return None
        end.note_takes()
        return arriving.array
