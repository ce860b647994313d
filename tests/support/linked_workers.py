"""Workers of a row in one process: each has its own event loop, its own tensor port and its own links."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

from protos import cluster_pb2 as pb
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.http2.server import Handler, StreamServer
from services.transport.security import Security
from worker.pipeline.row_links import RowLinks
from worker.pipeline.streams import Sharing

JOB = "20260101-000000-0123456789abcdef"
EPOCH = 3
LIMIT_SECONDS = 60.0
_OF_STREAMS = ("tick", "beat", "retry", "lock", "grace", "hello", "silent")
"""Timeouts after which a stream is replaced. Those after which its neighbour is lost are longer."""

Result = TypeVar("Result")


def quick_streams(heartbeat_seconds: float) -> Timeouts:
    """Return timeouts by which streams are replaced soon, while a neighbour is lost no sooner than usual.

    Args:
        heartbeat_seconds: heartbeat of the streams.
    """
    quick = asdict(Timeouts.from_heartbeat(heartbeat_seconds))
    timeouts = replace(STANDARD_TIMEOUTS, **{name: quick[name] for name in _OF_STREAMS})
    timeouts.check()
    return timeouts


class LinkedWorker:
    """A worker of a row, whose event loop runs on a thread of its own.

    Args:
        name: its name.
        timeouts: timeouts of its links.
        security: its certificates.
        wrap: returns the handler of its streams from the real one.
        shares: whether its arrays may go through shared memory.
        clock: clock of its links, in seconds.

    Attributes:
        links: its links.
        port: its tensor port.
        shared_links: number of links that have shared memory so far.
    """

    def __init__(
        self,
        name: str,
        timeouts: Timeouts,
        security: Security,
        wrap: Callable[[Handler], Handler] = lambda handler: handler,
        *,
        shares: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"loop of {name}")
        self._thread.start()
        self.shared_links = 0
        sharing = Sharing(shares, self._count_shared)
        incarnation = f"incarnation of {name}"
        self.links = RowLinks(name, incarnation, security, timeouts, sharing=sharing, clock=clock)
        handlers = {method: wrap(handler) for method, handler in self.links.handlers().items()}
        self._server = self.call(StreamServer.start("127.0.0.1:0", security, handlers))
        self.port = self._server.port

    def _count_shared(self, change: int) -> None:
        self.shared_links += max(change, 0)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_SECONDS)

    def set_row(self, row: pb.Row | None) -> None:
        """Form a row."""

        async def form() -> None:
            self.links.set_row(row, EPOCH)

        self.call(form())

    def seat(self, first: int, stages: int, address: str = "") -> pb.RowSeat:
        """Return the seat of some stages."""
        return pb.RowSeat(
            name=self.name,
            incarnation=f"incarnation of {self.name}",
            address=address or f"127.0.0.1:{self.port}",
            first_stage=first,
            stages=stages,
        )

    def stop(self) -> None:
        """Close the links and end the event loop, if that was not done before."""
        if self.loop.is_closed():
            return
        self.set_row(None)
        self.call(self._server.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def linked_workers(
    runs: Sequence[int],
    *,
    timeouts: Sequence[Timeouts] = (),
    security: Sequence[Security] = (),
    wrap: Callable[[Handler], Handler] = lambda handler: handler,
    shares: bool = False,
    address_of: Callable[[LinkedWorker], str] = lambda worker: "",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[LinkedWorker]]:
    """Run the workers of a row.

    Args:
        runs: number of stages of each.
        timeouts: timeouts of each; none for the standard ones.
        security: certificates of each; none for plain text.
        wrap: returns the handler of streams from the real one.
        shares: whether arrays may go through shared memory.
        address_of: returns the address at which the others reach a worker; empty for its own.
        clock: clock of the links, in seconds.
    """
    with ExitStack() as stack:
        workers = []
        for index in range(len(runs)):
            own = security[index] if security else Security()
            limits = timeouts[index] if timeouts else STANDARD_TIMEOUTS
            worker = LinkedWorker(f"w{index}", limits, own, wrap, shares=shares, clock=clock)
            stack.callback(worker.stop)
            workers.append(worker)
        row = form_row(workers, runs, address_of=address_of)
        for worker in workers:
            worker.set_row(row)
        yield workers


def form_row(
    workers: Sequence[LinkedWorker],
    runs: Sequence[int],
    number: int = 1,
    address_of: Callable[[LinkedWorker], str] = lambda worker: "",
) -> pb.Row:
    """Return a row of workers with these numbers of stages."""
    row = pb.Row(job=JOB, row=EPOCH << 32 | number)
    first = 0
    for worker, stages in zip(workers, runs, strict=True):
        row.seats.append(worker.seat(first, stages, address_of(worker)))
        first += stages
    return row


def make_lease(number: int = 1, *, row: int = 1, step: int = 2, first: int = 0, count: int = 1) -> pb.Lease:
    """Return a lease of a row."""
    return pb.Lease(
        job=JOB,
        generation=1,
        step=step,
        lease=EPOCH << 32 | number,
        phase=pb.TRAIN,
        first=first,
        count=count,
        row=EPOCH << 32 | row,
    )
