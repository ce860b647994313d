"""Real planes that several jobs give orders to, as they would over links: each job's orders in sequence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from plane.order_thread import Work
from plane.plane import Plane, PlaneOwner
from plane.plane_tensors import Arrays
from protos import plane_pb2 as pb
from services.tensors.chunk_messages import TensorChunk
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe


class WrongResult(AssertionError):
    """A plane has not made what plain numpy makes."""


def require(holds: bool, text: str) -> None:
    """Fail unless a condition holds."""
    if not holds:
        raise WrongResult(text)


class DrivenPlanes:
    """The planes of a layout's stripes.

    Args:
        count: number of planes.

    Attributes:
        planes: the planes.
        layouts: layouts of the jobs, which the jobs add.
        copies: arrays of copies for checkpoints, by plane, job and number of the copy.
        updates: number of updates that were ordered.
    """

    def __init__(self, count: int) -> None:
        self.layouts: dict[str, Layout] = {}
        self.copies: dict[tuple[int, str, int], Arrays] = {}
        self.updates = 0
        self._reports: defaultdict[str, list[tuple[int, Message]]] = defaultdict(list)  # by job
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[Exception] = self._loop.create_future()
        self.planes = [self._make_plane(index, count) for index in range(count)]
        self._waiting: list[list[Message]] = [[] for _ in range(count)]
        self._last_number = 0

    def _make_plane(self, index: int, count: int) -> Plane:
        owner = PlaneOwner(
            report=partial(self._report, index),
            fail=self._fail,
            read_layout=lambda order: self.layouts[order.job],
            fill=lambda order, tensors: None,
            copied=lambda order, arrays: self.copies.update({(index, order.job, order.copy): arrays}),
            drop_copy=lambda order: None,
        )
        return Plane(
            owner,
            epoch=1,
            stripe=Stripe(index, count),
            incarnation="p",
            metrics=None,
            update_metrics=None,
            shared_memory=False,
        )

    def close(self) -> None:
        """Stop the planes' threads."""
        for plane in self.planes:
            plane.close("over")

    def draw_number(self) -> int:
        """Return a number for an opening or a copy, rising over all jobs."""
        self._last_number += 1
        return self._last_number

    # ---- orders ----

    def of_chunk(self, chunk: int) -> Plane:
        """Return the plane that has a chunk."""
        return self.planes[chunk % len(self.planes)]

    def order(self, orders: Iterable[Message]) -> None:
        """Queue orders to the planes that they are for, behind all others."""
        for order in orders:
            self.updates += isinstance(order, pb.UpdatePart)
            chunk = order.chunks[0] if hasattr(order, "chunks") else getattr(order, "chunk", None)
            for index, queue in enumerate(self._waiting):
                if chunk is None or chunk % len(self.planes) == index:
                    queue.append(order)

    def hand_over(self) -> None:
        """Hand over all queued orders of all jobs."""
        for plane, queue in zip(self.planes, self._waiting, strict=True):
            orders, queue[:] = list(queue), []
            plane.carry_out(orders)

    async def settle(self, job: str) -> None:
        """Hand over all orders, and wait until those of a job are carried out and reported."""
        self.hand_over()
        for plane in self.planes:
            for thread in (plane._sums_thread, plane._kernel):
                done = self._loop.create_future()
                thread.start([Work(job, partial(plane._call_on_loop, done.set_result, None))])
                await asyncio.wait({done, self._failed}, return_when=asyncio.FIRST_COMPLETED)
                require(not self._failed.done(), f"a plane failed: {self._failed}")
            plane._tell()

    # ---- reports ----

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_result(error)

    def _report(self, index: int, body: Message) -> None:
        of_job: Any = body.header if isinstance(body, pb.ArrivedPieces) else body
        self._reports[of_job.job].append((index, body))

    def take_reports(self, job: str, kind: type[Message]) -> list[tuple[int, Any]]:
        """Return a job's reports of a type since the last call, each with the number of its plane."""
        reports = self._reports[job]
        self._reports[job] = [each for each in reports if not isinstance(each[1], kind)]
        return [each for each in reports if isinstance(each[1], kind)]

    def arrive(self, session: int, pieces: Sequence[TensorChunk]) -> list[pb.ArrivedPieces]:
        """Let a worker's data streams bring pieces of one lease; return what their planes report of them."""
        for piece in pieces:
            self.of_chunk(piece.header.index)._piece_arrived(session, piece)
        for plane in self.planes:
            plane._tell()
        return [arrived for _, arrived in self.take_reports(pieces[0].header.job, pb.ArrivedPieces)]
