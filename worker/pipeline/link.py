"""A worker's end of a link to a neighbour in its row: lanes for each kind of array, behind one lock.

The device thread puts and takes arrays here, the event loop moves them. The device thread waits only for credits and
for arrays that have not arrived.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import (
    ACTIVATION,
    ACTIVATION_GRADIENT,
    TIED_PART,
    ArrayHeader,
    ArrayKind,
    LinkState,
)
from services.instrumentation import timeline
from services.pipeline.row_ids import describe_row
from services.printable import printable
from services.tensors.payload_last import Message
from worker.core.lanes import Overtaken, Position, Progress, ReceivingLane, SendingLane
from worker.pipeline.array_plan import KINDS, ArrayPlan
from worker.pipeline.messages import (
    PIECE_BYTES,
    ArrayPiece,
    PassRefused,
    check_array,
    describe_array,
    encode_piece,
    encode_reference,
    encode_state,
)
from worker.pipeline.remedies import add_remedy
from worker.pipeline.seats import Place, RowPlaces
from worker.pipeline.shared_arrays import SharedArrays
from worker.row_exchange import LeaseDropped, NeighbourLost

log = logging.getLogger("tiermesh.worker")

MOST_REFUSALS = 3
"""Refused messages without an array between them after which a link is given up. A damaged message is sent again."""
_LAST_LEASE = (1 << 64) - 1
_EVENT_KINDS = {ACTIVATION: "activation", ACTIVATION_GRADIENT: "gradient", TIED_PART: "tied part"}
"""Kinds of arrays, as the timeline names them."""


@dataclass(frozen=True)
class Outgoing:
    """An array that is to be sent: its header, without the fields of a piece, and its bytes on the wire."""

    header: ArrayHeader
    content: memoryview


@dataclass(frozen=True)
class Incoming:
    """An array that arrives: the header of its first piece, and memory for its bytes."""

    header: ArrayHeader
    content: NDArray[np.uint8]


class Signals:
    """What a link tells the connection of the moment, on the event loop.

    Attributes:
        wake: event that is set when there may be something to send.
        over: event that is set when another connection has replaced this one, or the link is closed.
        state_due: whether a state is to be sent.
    """

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.over = asyncio.Event()
        self.state_due = True


@dataclass
class _Lanes:
    """Both directions of a link for one kind of array."""

    sending: SendingLane[Outgoing]
    receiving: ReceivingLane[Incoming]


class Link:
    """A worker's end of a link, as long as its row lives.

    Args:
        row: the row.
        neighbour: the worker at the other end.
        loop: the event loop that moves the arrays.
        count_sent: callback, called with the job and the bytes of each array that is sent.

    Attributes:
        neighbour: the worker at the other end.
    """

    def __init__(
        self,
        row: RowPlaces,
        neighbour: Place,
        loop: asyncio.AbstractEventLoop,
        count_sent: Callable[[str, int], None],
    ) -> None:
        self.neighbour = neighbour
        self._count_sent = count_sent
        self._row = row
        self._loop = loop
        self._changed = threading.Condition()
        self._plan: ArrayPlan | None = None
        self._lanes: dict[ArrayKind, _Lanes] = {}
        self._shared: SharedArrays | None = None  # once there is a plan
        self._lease = pb.Lease()  # the one opened last
        self._dropped = 0  # the last one that was dropped
        self._lost = ""  # why the neighbour counts as lost now
        self._refusals = 0  # messages refused since the last array that arrived
        self._problem = ""  # why there was no connection last
        self._signals: Signals | None = None  # to the one of the moment

    def __str__(self) -> str:
        return f"{self.neighbour} at {self.neighbour.address}"

    # ---- called on the device thread ----

    def open_lease(self, lease: pb.Lease, plan: ArrayPlan) -> None:
        """Begin a lease, whose id is larger than those before: what may still come of these is dropped."""
        with self._changed:
            self._lease = lease
            if self._plan is None:
                self._plan, workers = plan, len(self._row.places)
                self._shared = SharedArrays(plan, workers)
                for kind in KINDS:
                    credits = plan.choose_credits(kind, workers)
                    self._lanes[kind] = _Lanes(
                        SendingLane(credits, PIECE_BYTES), ReceivingLane(credits, plan.limit_bytes(kind))
                    )
            for each in self._lanes.values():
                each.receiving.drop(lease.lease - 1)
        self._tell_state()

    def send(self, header: ArrayHeader, content: memoryview) -> None:
        """Send an array as soon as there is a credit for it.

        Args:
            header: what it is.
            content: its bytes on the wire, which must not change.

        Raises:
            LeaseDropped: the lease was dropped.
            NeighbourLost: the neighbour can't be reached.
        """
        lane = self._lanes[header.kind].sending
        with self._changed:
            while self._is_wanted(header.lease) and not lane.has_room:
                self._changed.wait()
            lane.put(header.lease, Outgoing(header, content), content.nbytes)
        self._count_sent(header.job, content.nbytes)
        timeline.mark(f"to {self.neighbour.name}", "array", **_describe_event(header))
        self._wake()

    def take(self, lease: int, kind: ArrayKind) -> Incoming:
        """Return the next array of a kind that the neighbour has sent in a lease, once it has arrived.

        Raises:
            LeaseDropped: the lease was dropped, here or by the neighbour.
            NeighbourLost: the neighbour can't be reached.
        """
        lane = self._lanes[kind].receiving
        with self._changed:
            try:
                while (array := lane.take(lease)) is None and self._is_wanted(lease):
                    self._changed.wait()
            except Overtaken:
                raise LeaseDropped(f"lease {lease}: {self} has gone on to a later one") from None
            assert array is not None
        self._tell_state()
        return array

    def _is_wanted(self, lease: int) -> bool:
        if lease <= self._dropped:
            raise LeaseDropped(f"lease {lease}: dropped while it exchanged arrays with {self}")
        if self._lost:
            raise NeighbourLost(self.neighbour.name, self._lost)
        return True

    # ---- called on any thread ----

    def close_lease(self, lease: int) -> None:
        """End the passes of a lease: nothing more of it is taken. What was sent is still delivered."""
        with self._changed:
            for each in self._lanes.values():
                each.receiving.drop(lease)
        self._tell_state()

    def drop(self, lease: int) -> None:
        """Drop a lease, whose passes were not over. Calls that wait for it or for one before it raise LeaseDropped."""
        with self._changed:
            self._dropped = max(self._dropped, lease)
            for each in self._lanes.values():
                each.sending.drop(lease)
                each.receiving.drop(lease)
            self._changed.notify_all()
        self._tell_state()

    def _tell_state(self) -> None:
        signals = self._signals
        if signals is not None:
            signals.state_due = True
        self._wake()

    def _wake(self) -> None:
        signals = self._signals
        if signals is not None:
            self._loop.call_soon_threadsafe(signals.wake.set)

    # ---- called on the event loop ----

    def connect(self) -> Signals:
        """Begin a connection, and return what tells it what to do; one before it ends."""
        self.disconnect()
        self._signals = Signals()
        return self._signals

    def disconnect(self) -> None:
        """End the connection, if there is one."""
        before, self._signals = self._signals, None
        if before is not None:
            before.over.set()

    def close(self) -> None:
        """End the link with its row. Calls that wait raise LeaseDropped."""
        self.drop(_LAST_LEASE)
        self.disconnect()

    def tell_state(self) -> None:
        """Send a state, which shows that this worker lives."""
        self._tell_state()

    def note_problem(self, problem: str) -> None:
        """Note why there is no connection; empty if there is one."""
        self._problem = problem.removeprefix(f"{self.neighbour.address}: ")

    def note_refusal(self, reason: str) -> None:
        """Note that a message was refused, at this end or at the other one."""
        self._refusals += 1
        if self._refusals >= MOST_REFUSALS:
            self._set_lost(f"{self.neighbour}: {reason}")

    def fail(self, reason: str) -> None:
        """Count the neighbour as lost for good, since this end can't go on."""
        self._refusals = MOST_REFUSALS
        self._set_lost(f"{self.neighbour}: {reason}")

    def note_silence(self, seconds: float, limit_seconds: float) -> None:
        """Note how long nothing was heard of the neighbour, which counts as lost after a limit."""
        if self._refusals >= MOST_REFUSALS:
            return
        if seconds <= limit_seconds:
            self._set_lost("")
            return
        problem = f": {self._problem}" if self._problem else ""
        cause = f"{self.neighbour.address}: not heard for {seconds:.1f} s{problem}"
        self._set_lost(add_remedy(cause, self.neighbour.name))

    def _set_lost(self, reason: str) -> None:
        """Choose whether the neighbour counts as lost: the reason, or empty."""
        if reason and not self._lost:
            log.warning("worker %s is lost: %s", self.neighbour.name, reason)
        with self._changed:
            self._lost = reason
            self._changed.notify_all()

    def next_piece(self, started: set[ArrayKind], *, shares: bool) -> tuple[Message, ...] | None:
        """Return the next message with a piece of an array, as parts; None if there is none.

        Args:
            started: kinds whose arrays may be sent on the connection.
            shares: whether the neighbour can read this process's memory.
        """
        with self._changed:
            for kind in KINDS:
                piece = self._lanes[kind].sending.next_piece() if kind in started else None
                if piece is not None:
                    break
            else:
                return None
        header = ArrayHeader()
        header.CopyFrom(piece.array.header)
        header.number, header.offset_bytes = piece.number, piece.start
        content = piece.array.content[piece.start : piece.stop]
        places = self._shared.put(kind, piece, content) if shares and self._shared is not None else None
        return encode_piece(header, content) if places is None else (encode_reference(header, places),)

    def state_message(self, started: set[ArrayKind]) -> Message:
        """Return the message with this end's state.

        Args:
            started: kinds whose arrays may be sent on the connection.
        """
        row = self._row
        state = LinkState(
            job=row.job,
            row=row.row,
            stage=row.own.stages.first,
            neighbour=self.neighbour.stages.first,
            name=row.own.name,
            incarnation=row.own.incarnation,
        )
        with self._changed:
            for kind, lanes in self._lanes.items():
                arrived, taken, lease, filled_bytes = lanes.receiving.position
                lane = state.lanes.add(
                    kind=kind, arrived=arrived, taken=taken, lease=lease, filled_bytes=filled_bytes
                )
                if kind in started:
                    lane.sent, lane.sending, lane.sent_bytes = lanes.sending.progress
        return encode_state(state)

    def take_state(self, state: LinkState, started: set[ArrayKind]) -> None:
        """Take how far the neighbour has received arrays.

        Args:
            state: its state.
            started: kinds whose positions on this connection are known; those that the state tells are added.

        Raises:
            Refused: it is none of this link, or names what was not sent.
        """
        self.check_state(state)
        with self._changed:
            for each in state.lanes:
                lanes = self._lanes.get(each.kind)
                if lanes is None:
                    if each.arrived or each.taken:
                        raise PassRefused(
                            f"state of {self.neighbour}: array {each.arrived} has arrived, but none was sent"
                        )
                    continue
                lanes.receiving.check(Progress(each.sent, each.sending, each.sent_bytes))
                if each.kind in started:
                    lanes.sending.note_taken(each.taken)
                else:
                    lanes.sending.reconnect(Position(each.arrived, each.taken, each.lease, each.filled_bytes))
                    started.add(each.kind)
            self._changed.notify_all()

    def check_state(self, state: LinkState) -> None:
        """Check that a state is the neighbour's, of this link.

        Raises:
            PassRefused: it is of another link, or of another process.
        """
        found = (state.job, state.row, state.stage, state.neighbour, state.name, state.incarnation)
        row, neighbour = self._row, self.neighbour
        expected = (row.job, row.row, neighbour.stages.first, row.own.stages.first)
        if found != (*expected, neighbour.name, neighbour.incarnation):
            raise PassRefused(
                f"state of worker {printable(state.name, 60)}, stage {state.stage} to {state.neighbour} in "
                f"{describe_row(state.row)} of job {printable(state.job, 60)}: expected {neighbour} of "
                f"{describe_row(row.row)} of job {row.job}"
            )

    def take_piece(self, piece: ArrayPiece) -> None:
        """Take a piece of an array; a stale one is dropped.

        Raises:
            Refused: it contradicts the job, the lease, or what came before it.
        """
        header, row = piece.header, self._row
        if (header.job, header.row, header.epoch) != (row.job, row.row, row.epoch):
            return  # stale: of a row before
        plan = self._plan
        if plan is None:
            raise PassRefused(f"{describe_array(header)}: came before this worker has opened a lease")
        size_bytes = check_array(piece, plan, row.own.stages)
        start = header.offset_bytes
        payload = piece.payload[: max(0, size_bytes - start)] if piece.is_shared else piece.payload
        stop = start + payload.nbytes
        with self._changed:
            lease = self._lease
            version, expected = (header.generation, header.step), (lease.generation, lease.step)
            if header.lease == lease.lease and version != expected:
                raise PassRefused(
                    f"{describe_array(header)}: generation {version[0]} and step {version[1]}, expected {expected[0]} "
                    f"and {expected[1]}, those of the lease"
                )
            lane = self._lanes[header.kind].receiving
            taken = lane.taken
            array = lane.accept(
                header.lease,
                header.number,
                size_bytes,
                start,
                stop,
                lambda: Incoming(header, np.empty(size_bytes, np.uint8)),
            )
            if array is not None:
                array.content[start:stop] = np.frombuffer(payload, np.uint8)
            if stop == size_bytes:
                self._refusals = 0
                self._changed.notify_all()
        if stop == size_bytes:
            timeline.mark(f"from {self.neighbour.name}", "array", **_describe_event(header))
        if lane.taken != taken:  # it was dropped: the neighbour gets its credit back
            self.tell_state()


def _describe_event(header: ArrayHeader) -> dict[str, Any]:
    """Return what the timeline says of an array."""
    return {
        "step": header.step,
        "job": header.job,
        "kind": _EVENT_KINDS[header.kind],
        "lease": header.lease,
        "range": header.range,
        "micro_batch": header.micro_batch,
    }
