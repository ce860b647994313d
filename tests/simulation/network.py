"""Virtual time, and streams that keep order within and none between them."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Loop:
    """Virtual time: calls to make, earliest first; of the same moment, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call at this moment."""
        self._count += 1
        heapq.heappush(self._calls, (seconds, self._count, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call so much later."""
        self.at(self.now + seconds, call, *arguments)

    def step(self) -> None:
        """Make the next call."""
        self.now, _, call, arguments = heapq.heappop(self._calls)
        call(*arguments)


class Pipe:
    """One direction of one stream.

    Args:
        loop: its time.
        rng: decides delays and repetitions.
        deliver: takes what was sent, in order.
        receiver: whose it is; while it is frozen it takes nothing.
        seconds: typical delay; 0: none, and nothing is repeated (in one process).
        repeat: how likely a message is to come twice.
        repeat_late: a repetition may come any time later, not only right after the first.
        copy: messages go through bytes, as on a real wire.
        injected: counts what goes wrong by intent.
    """

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        deliver: Callable[..., None],
        *,
        receiver: Process,
        seconds: float,
        repeat: float = 0.0,
        repeat_late: bool = False,
        copy: bool = False,
        injected: Counter[str],
    ) -> None:
        self.open = True
        self._loop = loop
        self._random = rng.random
        self._deliver = deliver
        self._seconds = seconds
        self._repeat = repeat if seconds else 0.0
        self._repeat_late = repeat_late
        self._copy = copy
        self._injected = injected
        self._receiver = receiver
        self._queue: deque[tuple[Any, ...]] = deque()
        self._last = self._held_until = 0.0

    def send(self, *items: Any) -> None:
        """Send; lost if the pipe is or gets broken before it arrives."""
        if not self.open:
            return
        if self._copy:
            items = tuple(map(_through_bytes, items))
        self._put(items)
        if self._repeat and self._random() < self._repeat:
            self._injected["message twice, the second late" if self._repeat_late else "message twice"] += 1
            if self._repeat_late:
                self._loop.after(50 * self._seconds * self._random(), self._put, items)
            else:
                self._put(items)

    def _put(self, items: tuple[Any, ...]) -> None:
        if not self.open:
            return
        self._queue.append(items)
        arrival = self._loop.now
        if self._seconds:
            chance = self._random()
            delay = self._seconds * chance * chance * 4
            if chance > 0.99:
                delay = min(20 * delay, 2.0)
            arrival += delay
        if arrival < self._last:
            arrival = self._last
        self._last = arrival
        self._loop.at(arrival, self._arrive)

    def _arrive(self) -> None:
        """Deliver the first in the queue; whatever is held up comes later, in the same order."""
        held_until = max(self._held_until, self._receiver.frozen_until)
        if not self.open:
            return
        if self._loop.now < held_until:
            self._loop.at(held_until, self._arrive)
        else:
            self._deliver(*self._queue.popleft())

    @property
    def in_flight(self) -> int:
        """How much was sent and has not arrived."""
        return len(self._queue)

    def hold(self, until: float) -> None:
        """Let nothing through until then; nobody is told."""
        self._held_until = max(self._held_until, until)

    def cut(self) -> None:
        """Break: what is in flight is lost."""
        self.open = False
        self._queue.clear()


def _through_bytes(item: Any) -> Any:
    return type(item).FromString(item.SerializeToString()) if isinstance(item, Message) else item
