"""Connections between processes: a control and a data stream, each in both directions, that break together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.network import Pipe

if TYPE_CHECKING:
    from tests.simulation.world import World

CHUNKS_IN_FLIGHT = 6
"""Chunks that a data stream takes before it slows its writer."""


class Link:
    """A connection; the caller is the worker (to the aggregator) or the aggregator (to the optimizer).

    Attributes:
        session: by which the side that was called knows it.
        ends: the process that was called, and the caller.
        up_control, up_data: from the caller.
        down_control, down_data: to the caller.
    """

    def __init__(self, world: World, session: int, *, local: bool = False) -> None:
        self.session = session
        self.ends: tuple[Any, Any] = (None, None)
        self._world = world
        self._local = local
        self._lost: list[Callable[[str], None]] = []
        self._pipes: list[Pipe] = []
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
        """Lay the four pipes; `lost_below` tells the caller, `lost_above` the called, that the link is down."""
        self.ends = ends
        self.up_control, self.down_control = self._control(up_control), self._control(down_control)
        self.up_data, self.down_data = self._data(up_data), self._data(down_data)
        self._pipes = [self.up_control, self.down_control, self.up_data, self.down_data]
        self._lost = [lost_above, lost_below]

    def _control(self, deliver: Callable[..., None]) -> Pipe:
        scenario = self._world.scenario
        return Pipe(
            self._world.loop,
            self._world.rng,
            deliver,
            seconds=self._seconds(scenario.control_seconds),
            repeat=scenario.repeat_control,
            copy=scenario.copies_messages,
        )

    def _data(self, deliver: Callable[..., None]) -> Pipe:
        scenario = self._world.scenario
        return Pipe(
            self._world.loop,
            self._world.rng,
            deliver,
            seconds=self._seconds(scenario.data_seconds),
            repeat=scenario.repeat_chunks,
            repeat_late=True,
            copy=scenario.copies_messages,
        )

    def _seconds(self, usual: float) -> float:
        """Some streams are much slower than the others of the same connection."""
        return 0.0 if self._local else usual * self._world.rng.choice(self._world.scenario.skews)

    @property
    def up(self) -> bool:
        """Whether messages still pass."""
        return self._pipes[0].open

    def cut(self) -> None:
        """Break: messages in flight are lost, each end notices in its own time, maybe long after the other."""
        if not self.up:
            return
        for pipe in self._pipes:
            pipe.cut()
        for lost in self._lost:
            chance = self._world.rng.random()
            self._world.loop.after(40.0 if chance > 0.95 else 4 * chance**3, lost, "the link broke")

    def close(self, reason: str) -> None:
        """Closed by the side that was called: what it said before still arrives."""
        if not self.up:
            return
        for pipe in (self.up_control, self.up_data, self.down_data):
            pipe.cut()
        self.down_control.send(_CLOSED, reason)

    def closed(self, reason: str) -> None:
        """The caller has read the end of the stream."""
        self.down_control.cut()
        self._lost[1](reason)


_CLOSED: Any = object()


def is_end(first: Any) -> bool:
    """Whether a delivered item is the end of the control stream."""
    return first is _CLOSED
