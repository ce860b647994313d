"""Payloads between workers and the optimizer's tensors: the core's orders go to the plane that has the payload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from aggregator.broken_jobs import ShardFailed
from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore
from aggregator.core.sums.plane_orders import discard_pieces
from aggregator.shards.link import ShardLink
from plane.group import PlaneGroup
from plane.link import PlaneLink
from plane.streams.exchange_server import read_incarnation
from plane.streams.worker_sessions import WorkerSession, WorkerSessions
from protos import plane_pb2 as pb
from protos.cluster_pb2 import Welcome
from services.errors import Refusal
from services.tensors.layout_parts import read_piece

log = logging.getLogger("tiermesh.aggregator")

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


_WITHOUT_SUMS = pb.DiscardPieces | pb.DropPieces | pb.PassJob | pb.SendVersion
"""Orders that planes can carry out also when they have lost the sums that the core knows."""


class DataPlane:
    """The planes as the aggregator's core sees them; all methods are called on the event loop.

    Args:
        planes: links to the planes.
        shards: the same links, if the planes are in other processes.
        core: the aggregator's core, which decides on chunks and on the weights for each worker.
        sessions: sessions of the workers.
        feed: called with inputs for the core.
        on_sums_finished: called with the order by which sums in their plane are finished, for the optimizer.
        on_failure: called with the unexpected error of a shard.
    """

    def __init__(
        self,
        planes: PlaneGroup,
        *,
        core: AggregatorCore,
        sessions: WorkerSessions,
        feed: Callable[[ev.DataStreamOpened | ev.PiecesArrived], None],
        on_sums_finished: Callable[[pb.FinishSum], None],
        on_failure: Callable[[Exception], None],
        shards: Sequence[ShardLink] = (),
    ) -> None:
        self._planes = planes
        self._shards = shards
        self._core = core
        self._sessions = sessions
        self._feed = feed
        self._on_sums_finished = on_sums_finished
        self._on_failure = on_failure
        # Jobs whose sums the planes have as the core knows them: from DropSums until a plane is lost.
        self._with_sums: set[str] = set()
        # By session: the shards with an open data stream of the worker.
        self._open_streams: dict[int, set[PlaneLink]] = {}
        self._last_refusal: Refusal | None = None
        planes.on_lost.append(self._lost)
        planes.report_handlers.update(
            {
                pb.ArrivedPieces: self._arrived,
                pb.WorkerExchanges: self._worker_exchanges,
                pb.WorkerGone: self._worker_gone,
                pb.OrderFailed: self._order_failed,
            }
        )

    def _lost(self, reason: str) -> None:
        """Disconnect all workers: their payloads are lost with the shard."""
        self._with_sums.clear()
        self._sessions.close_all(reason)

    def _order_failed(self, link: PlaneLink, body: pb.OrderFailed) -> None:
        """Fail as if the error had happened here: the job that causes it again and again is set aside."""
        if self._core.runs:  # else the shard's stream ends alone
            self._on_failure(ShardFailed(f"{link}: {body.reason}"))

    # ---- workers ----

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve a worker's data stream, or refuse it if tensors go to shards."""
        plane = self._planes.local
        if plane is not None:
            await plane.serve(await plane.find_worker(read_incarnation(context)), context)
            return
        addresses = ", ".join(each.address for each in self._shards)
        text = f"this aggregator takes no tensors; open Exchange with its shards, see Welcome: {addresses}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def check_ready(self) -> Refusal | None:
        """Return which shard is not connected; None if all are."""
        return self._planes.check_ready()

    def worker_connected(self, session: WorkerSession) -> None:
        """Announce a worker to all shards, before its data streams come to them."""
        self._open_streams[session.number] = set()
        self._planes.send_order(
            pb.WorkerAttends(session=session.number, incarnation=session.incarnation, name=session.name)
        )

    def fill_welcome(self, session: int, welcome: Welcome) -> None:
        """Add the shards' addresses to a worker's Welcome, if there are shards."""
        if self._shards:
            welcome.session = session
            welcome.shards.extend(each.address for each in self._shards)
            welcome.shard_tensor_ports.extend(each.tensor_port for each in self._shards)

    def worker_lost(self, session: WorkerSession, reason: str) -> None:
        """End a worker's data streams to the shards."""
        self._open_streams.pop(session.number, None)
        self._planes.send_order(pb.WorkerLeft(session=session.number, reason=reason))

    def _worker_exchanges(self, link: PlaneLink, body: pb.WorkerExchanges) -> None:
        shards = self._open_streams.get(body.session)
        if shards is None:
            return
        shards.add(link)
        if len(shards) == len(self._planes.links):
            self._feed(ev.DataStreamOpened(body.session))

    def _worker_gone(self, link: PlaneLink, body: pb.WorkerGone) -> None:
        session = self._sessions.get(body.session)
        if session is not None:
            reason = link.describe(body.reason)
            log.info("worker %s: %s", session.name, reason)
            session.mailbox.close(reason, _STATUS_CODES.get(body.code, grpc.StatusCode.UNAVAILABLE))

    # ---- chunks from workers ----

    def _arrived(self, link: PlaneLink, body: pb.ArrivedPieces) -> None:
        """Let the core decide on pieces of chunks, unless they are stale."""
        header, pieces = body.header, [read_piece(each) for each in body.pieces]
        refusal = self._core.check_chunk(body.session, header)
        own = link.stripe.chunk_indices(self._core.expected_elements(header.job) or 0)
        strange = next((piece.chunk for piece in pieces if piece.chunk not in own), None)
        if refusal is None and strange is not None:
            refusal = Refusal(f"the chunk's index is {strange}, expected a chunk of {link}")
        in_place = body.in_place and self._planes.local is not None
        arrived = ev.PiecesArrived(body.session, header, pieces, in_place, body.arrival)
        if refusal is None:
            self._feed(arrived)
            return
        if refusal != self._last_refusal:  # logged once, not for every chunk of a lease
            session = self._sessions.get(body.session)
            log.info("worker %s: dropped a chunk: %s", session.name if session else "that left", refusal)
            self._last_refusal = refusal
        link.send_order(discard_pieces(header, arrived.arrivals))

    def submit(self, orders: Sequence[ev.PlaneOrder]) -> None:
        """Send orders to the planes that have their payloads."""
        for order in orders:
            if isinstance(order, pb.DropSums):
                self._with_sums = {order.job} | (self._core.runs.keys() & self._with_sums)
            has_sums = order.job in self._with_sums
            if isinstance(order, pb.KeepPieces) and not has_sums:
                order = pb.DiscardPieces(job=order.job, chunk=order.chunk, arrivals=order.arrivals)
            if has_sums or isinstance(order, _WITHOUT_SUMS):
                self._planes.send_order(order)
            if isinstance(order, pb.FinishSum) and has_sums:
                self._on_sums_finished(order)

    def close(self) -> None:
        """Stop the threads of the plane in this process."""
        if self._planes.local is not None:
            self._planes.local.close("the aggregator stops")
