"""Virtual time, and streams that keep their own order, but none between each other."""

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
    """Virtual time: a queue of calls, earliest first. Calls of the same moment keep the order of their registration."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call at this moment."""
        self._count += 1
        heapq.heappush(self._calls, (seconds, self._count, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after this delay."""
        self.at(self.now + seconds, call, *arguments)

    def step(self) -> None:
        """Run the next call."""
        self.now, _, call, arguments = heapq.heappop(self._calls)
        call(*arguments)


class Pipe:
    """One direction of one stream.

    Args:
        loop: virtual time.
        rng: source of delays and repetitions.
        deliver: function that receives the items, in order.
        receiver: receiving process. While it is frozen nothing is delivered.
        seconds: typical delay. With 0 (both ends in one process) nothing is repeated.
        repeat: probability that a message arrives twice.
        repeat_late: whether a repetition may come much later than the first copy.
        copy: whether messages are serialised and parsed, as on a real wire.
        injected: counter of injected faults.
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
        """Send the items. They are lost if the pipe breaks before they arrive."""
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
        """Deliver the first item of the queue. A pipe on hold delivers later, in the same order."""
        held_until = max(self._held_until, self._receiver.frozen_until)
        if not self.open:
            return
        if self._loop.now < held_until:
            self._loop.at(held_until, self._arrive)
        else:
            self._deliver(*self._queue.popleft())

    @property
    def in_flight(self) -> int:
        """Number of items sent that have not arrived."""
        return len(self._queue)

    def hold(self, until: float) -> None:
        """Hold back all items until then, without notice."""
        self._held_until = max(self._held_until, until)

    def cut(self) -> None:
        """Break the pipe. Items in flight are lost."""
        self.open = False
        self._queue.clear()


def _through_bytes(item: Any) -> Any:
    return type(item).FromString(item.SerializeToString()) if isinstance(item, Message) else item
