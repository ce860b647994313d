"""Records for what the passes of a lease wait, and how long: for other stages' workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.instrumentation import timeline
from services.pipeline.exchange import ExactArray, ReceivedKind
from services.pipeline.schedule import Pass
from worker.device_watch import DeviceWatch
from worker.row_exchange import RowExchange


class ObservedExchange:
    """A `RowExchange` that records in the timeline and the device watch what waits, and adds up the time.

    Args:
        exchange: the exchange.
        job: job of the lease.
        step: step of the lease.
        clock: monotonic time in seconds.
        watch: told which worker the device thread waits for.

    Attributes:
        waited_seconds: time spent in its calls.
    """

    def __init__(
        self, exchange: RowExchange, job: str, step: int, clock: Callable[[], float], watch: DeviceWatch
    ) -> None:
        self._exchange = exchange
        self._job = job
        self._step = step
        self._clock = clock
        self._watch = watch
        self.waited_seconds = 0.0

    def send(self, to: Pass, array: ExactArray) -> None:
        """Send a pass its activation, or its gradient."""
        with self._wait("room", to.range_index, to.micro_batch, peer=to.range_index):
            self._exchange.send(to, array)

    def receive(self, one: Pass) -> ExactArray:
        """Return what a pass of a neighbouring range has sent to this one."""
        what = "gradient" if one.is_backward else "activation"
        sender = one.range_index + (1 if one.is_backward else -1)
        with self._wait(what, one.range_index, one.micro_batch, peer=sender):
            return self._exchange.receive(one)

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Send the first range the last one's part of the token embedding's gradient."""
        with self._wait("room", 0, micro_batch, peer=0):
            self._exchange.send_tied(micro_batch, array)

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Return what the last range has sent by `send_tied`."""
        with self._wait("tied part", 0, micro_batch, peer=-1):
            return self._exchange.receive_tied(micro_batch)

    def worker_of(self, range_index: int) -> str:
        """Return which worker of the row has a range, for people."""
        return self._exchange.worker_of(range_index)

    def sender_of(self, kind: ReceivedKind) -> str:
        """Return the name of the worker that sends this one's arrays of a kind."""
        return self._exchange.sender_of(kind)

    def drop(self) -> None:
        """End the lease: calls that wait raise LeaseDropped."""
        self._exchange.drop()

    def close(self) -> None:
        """End the lease's passes."""
        self._exchange.close()

    @contextmanager
    def _wait(self, what: str, range_index: int, micro_batch: int, *, peer: int) -> Iterator[None]:
        began = self._clock()
        owed = f"{what} of micro-batch {micro_batch}, {self._exchange.worker_of(peer)}"
        try:
            with (
                self._watch.waiting(owed),
                timeline.span(
                    "device",
                    "wait for stage",
                    self._step,
                    job=self._job,
                    what=what,
                    range=range_index,
                    micro_batch=micro_batch,
                ),
            ):
                yield
        finally:
            self.waited_seconds += self._clock() - began
