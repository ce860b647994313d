"""Connections between processes. Each has a control and a data stream in both directions, which break together.

A direction may also become silent without notice. Messages then wait, as in the sender's socket, until the silence ends
or an end gives the connection up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.network import Pipe

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.simulated_cluster import SimulatedCluster


class Link:
    """A connection. The caller is the worker (to the aggregator) or the aggregator (to the optimizer).

    Attributes:
        session: number of the connection at the called side.
        ends: the called process and the caller.
        up_control, up_data: pipes from the caller.
        down_control, down_data: pipes to the caller.
        up: whether both ends use the connection.
        local: whether both ends are in one process.
        pinged: whether unanswered pings end the connection. Otherwise the ends detect silence themselves.
        obeyed_epoch: epoch that the caller, a refused aggregator, must exceed; 0 if there is none.
    """

    def __init__(
        self, cluster: SimulatedCluster, session: int, *, local: bool = False, pinged: bool = False
    ) -> None:
        self.session = session
        self.ends: tuple[Any, Any] = (None, None)
        self.up = True
        self.local = local
        self.pinged = pinged
        self.obeyed_epoch = 0
        self._cluster = cluster
        self._lost: list[Callable[[str], None]] = []
        self.up_control: Pipe
        self.up_data: Pipe
        self.down_control: Pipe
        self.down_data: Pipe

    def connect(
        self,
        *,
        up_control: Callable[..., None],
        up_data: Callable[..., None],
        down_control: Callable[..., None],
        down_data: Callable[..., None],
        lost_above: Callable[[str], None],
        lost_below: Callable[[str], None],
        ends: tuple[Any, Any],
    ) -> None:
        """Create the four pipes. A broken link calls `lost_below` at the caller and `lost_above` at the called side."""
        self.ends = ends
        called, caller = ends
        self.up_control, self.down_control = (
            self._control(up_control, called),
            self._control(down_control, caller),
        )
        self.up_data, self.down_data = self._data(up_data, called), self._data(down_data, caller)
        self._lost = [lost_above, lost_below]

    def _control(self, deliver: Callable[..., None], receiver: Process) -> Pipe:
        scenario = self._cluster.scenario
        return Pipe(
            self._cluster.loop,
            self._cluster.rng,
            deliver,
            receiver=receiver,
            seconds=self._seconds(scenario.control_seconds),
            repeat=scenario.repeat_control,
            copy=scenario.copies_messages,
            injected=self._cluster.injected,
        )

    def _data(self, deliver: Callable[..., None], receiver: Process) -> Pipe:
        scenario = self._cluster.scenario
        return Pipe(
            self._cluster.loop,
            self._cluster.rng,
            deliver,
            receiver=receiver,
            seconds=self._seconds(scenario.data_seconds),
            repeat=scenario.repeat_chunks,
            repeat_late=True,
            copy=scenario.copies_messages,
            injected=self._cluster.injected,
        )

    def _seconds(self, usual: float) -> float:
        """Return the delay of one stream. Some streams are much slower than others of the same connection."""
        return 0.0 if self.local else usual * self._cluster.rng.choice(self._cluster.scenario.skews)

    def cut(self) -> None:
        """Break the link. Messages in flight are lost, and each end notices at its own time."""
        if not self.up:
            return
        self.up = False
        for pipe in (self.up_control, self.up_data, self.down_control, self.down_data):
            pipe.cut()
        for end, lost in zip(self.ends, self._lost, strict=True):
            chance = self._cluster.rng.random()
            end.later(40.0 if chance > 0.95 else 4 * chance**3, lost, "the link broke")

    def disconnect(self) -> None:
        """End the link at both ends, which know why."""
        self.up = False
        for pipe in (self.up_control, self.up_data, self.down_control, self.down_data):
            pipe.cut()

    def close(self, reason: str) -> None:
        """Close the link from the called side. Its earlier messages still arrive."""
        if not self.up:
            return
        self.up = False
        for pipe in (self.up_control, self.up_data, self.down_data):
            pipe.cut()
        self.down_control.send(_CLOSED, reason)

    def abandon(self, reason: str) -> None:
        """Give the link up from the caller's side. Its earlier messages may arrive after it has reconnected."""
        self.down_data.cut()
        if self.up:
            self.up = False
            self.up_control.send(_CLOSED, reason)
        self.closed(reason)

    def closed(self, reason: str) -> None:
        """End the caller's side, which has given up or has read the end of the stream."""
        if self.down_control.open:
            self.down_control.cut()
            self._lost[1](reason)

    def ended(self, reason: str) -> None:
        """End the called side, which has read that the caller gave up."""
        self.up_control.cut()
        self.up_data.cut()
        self._lost[0](reason)

    # ---- silence ----

    def hold(self, seconds: float, *, up: bool, down: bool) -> None:
        """Hold back all messages in these directions for this long."""
        until = self._cluster.loop.now + seconds
        for held, pipes in (
            (up, (self.up_control, self.up_data)),
            (down, (self.down_control, self.down_data)),
        ):
            for pipe in pipes if held else ():
                pipe.hold(until)
        self.silent(until)

    def silent(self, until: float) -> None:
        """Leave pings unanswered until then."""
        if self.pinged:
            for end, give_up in zip(self.ends, (self._close_from_called_side, self.abandon), strict=True):
                patience = STANDARD_TIMEOUTS.ping * (1 + self._cluster.rng.random())
                end.later(patience, self._unanswered, until, give_up)

    def _close_from_called_side(self, reason: str) -> None:
        if self.up:
            self.close(reason)
            self._lost[0](reason)

    def _unanswered(self, until: float, give_up: Callable[[str], None]) -> None:
        if self._cluster.loop.now < until:
            give_up("pings stay unanswered")


_CLOSED: Any = object()


def is_end(first: Any) -> bool:
    """Return whether a delivered item is the end of the control stream."""
    return first is _CLOSED
