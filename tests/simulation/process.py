"""Simulated processes: they can die between any two effects, freeze, and are traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster

Core = TypeVar("Core")


class Process:
    """One life of a process with one core.

    Attributes:
        alive: whether the process runs or is frozen. A dead process ignores what arrives.
        doomed_after: number of effects until the process dies, or None.
        frozen_until: end of the freeze. Connections stay open meanwhile.
        clock_ahead_seconds: sum of the jumps of the monotonic clock.
        clock_rate: speed of the monotonic clock.
    """

    def __init__(self, cluster: SimulatedCluster, title: str) -> None:
        self.cluster = cluster
        self.title = title
        self.alive = True
        self.doomed_after: int | None = None
        self.frozen_until = 0.0
        self.clock_ahead_seconds = 0.0
        self.clock_rate = 1.0

    def effects(self, handle: Callable[..., list[Any]], *inputs: Any) -> Iterator[Any]:
        """Yield the core's effects of an input, one by one, as long as the process lives."""
        if self.cluster.tracing:
            self.cluster.trace(self.title, "<-", inputs[0])
        for effect in handle(*inputs):
            if self.doomed_after is not None:
                self.doomed_after -= 1
                if self.doomed_after < 0:
                    self.cluster.trace(self.title, "!!", "dies")
                    self.die()
            if not self.alive:
                return
            if self.cluster.tracing:
                self.cluster.trace(self.title, "->", effect)
            yield effect

    def die(self) -> None:
        """Die at once."""
        self.alive = False
        self.cluster.died(self)

    def die_if_alive(self) -> None:
        """Die at once, unless dead already."""
        if self.alive:
            self.die()

    @property
    def running(self) -> bool:
        """Whether the process is alive and not frozen."""
        return self.alive and self.cluster.loop.now >= self.frozen_until

    @property
    def now(self) -> float:
        """Time of the process's monotonic clock, in seconds."""
        return self.cluster.loop.now * self.clock_rate + self.clock_ahead_seconds

    def thawed(self) -> None:
        """Continue after a freeze: send the waiting chunks."""

    def freeze(self, seconds: float) -> None:
        """Freeze for this long, as after SIGSTOP."""
        self.frozen_until = max(self.frozen_until, self.cluster.loop.now + seconds)
        self.later(0.0, self.thawed)

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after this delay, if the process still lives."""
        self.cluster.loop.after(seconds, self._if_alive, call, arguments)

    def _if_alive(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.running:
            call(*arguments)
        else:
            self.cluster.loop.at(self.frozen_until, self._if_alive, call, arguments)


class Queue:
    """A thread with one queue, which runs its tasks in order."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._free_at = 0.0

    def submit(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after all earlier tasks and `seconds` of work."""
        now = self._process.cluster.loop.now
        self._free_at = max(self._free_at, now) + seconds
        self._process.later(self._free_at - now, call, *arguments)
