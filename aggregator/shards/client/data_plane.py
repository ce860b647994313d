"""The data plane of an aggregator with shards: the payloads are in the shards, which get orders from here.

The core decides as it does without shards. Its orders go to the shard that has the payload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from aggregator.broken_jobs import ShardFailed
from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore
from aggregator.core.leasing.deaths import FAULTS, describe_fault
from aggregator.core.sums.sum_orders import discard_piece
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.link import ShardLink
from aggregator.shards.client.released_weights import ReleasedWeights
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.tensors.chunk_messages import Message, TensorChunk

log = logging.getLogger("tiermesh.aggregator")


class ShardedDataPlane:
    """A `DataPlane` whose payloads are in shards.

    Args:
        shards: links to the shards.
        core: the aggregator's core, which decides on chunks and on the weights for each worker.
        sessions: sessions of the workers.
        feed: called with inputs for the core.
        on_sum_finished: called with the header of a finished sum, for the optimizer.
        on_failure: called with the unexpected error of a shard.
        call_soon: has the event loop call something in its next turn.
    """

    def __init__(
        self,
        shards: ShardGroup,
        *,
        core: AggregatorCore,
        sessions: WorkerSessions,
        feed: Callable[[ev.DataStreamOpened | ev.ChunkArrived], None],
        on_sum_finished: Callable[[ChunkHeader], None],
        on_failure: Callable[[Exception], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._shards = shards
        self._core = core
        self._sessions = sessions
        self._feed = feed
        self._on_sum_finished = on_sum_finished
        self._on_failure = on_failure
        self._call_soon = call_soon
        self._sums_lost = True  # the core may know sums that no shard has, until it drops all of them
        # By session: the shards with an open data stream of the worker.
        self._open_streams: dict[int, set[ShardLink]] = {}
        self._weights: dict[int, ReleasedWeights] = {}  # by session
        self._last_refusal: Refusal | None = None
        self._wake_scheduled = False
        shards.on_lost.append(self._lost)
        shards.on_killed.append(self._shard_killed)
        shards.report_handlers.update(
            {
                pb.ArrivedPiece: self._arrived,
                pb.WorkerExchanges: self._worker_exchanges,
                pb.WorkerGone: self._worker_gone,
                pb.OrderFailed: self._order_failed,
            }
        )

    def _lost(self, reason: str) -> None:
        """Disconnect all workers: their payloads are lost with the shard."""
        self._sums_lost = True
        self._sessions.close_all(reason)

    def _order_failed(self, link: ShardLink, body: pb.OrderFailed) -> None:
        """Fail as if the error had happened here: the job that causes it again and again is set aside."""
        if self._core.run is not None:  # else the shard's stream ends alone
            self._on_failure(ShardFailed(f"{link}: {body.reason}"))

    def _shard_killed(self, link: ShardLink, killed: cluster.Predecessor) -> None:
        """Fail as after an error of a shard, if a fault has killed it while it had the running job's tensors.

        A person's kill is no fault, nor is one by the kernel for lack of memory: both are SIGKILL.
        """
        run = self._core.run
        if run is not None and run.job.id == killed.job and killed.signal in FAULTS:
            self._on_failure(ShardFailed(f"{link}: its process died: {describe_fault(killed)}"))

    # ---- workers ----

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Refuse a worker's data stream: tensors go to the shards."""
        addresses = ", ".join(link.address for link in self._shards.links)
        text = f"this aggregator takes no tensors; open Exchange with its shards, see Welcome: {addresses}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def check_ready(self) -> Refusal | None:
        """Return which shard is not connected; None if all are."""
        return self._shards.check_ready()

    def worker_connected(self, session: WorkerSession) -> None:
        """Announce a worker to all shards, before its data streams come to them."""
        self._open_streams[session.number] = set()
        self._weights[session.number] = ReleasedWeights(session.number, len(self._shards.links))
        self._shards.send_to_all(
            pb.WorkerAttends(session=session.number, incarnation=session.incarnation, name=session.name)
        )

    def fill_welcome(self, session: int, welcome: cluster.Welcome) -> None:
        """Add the shards' addresses to a worker's Welcome."""
        welcome.session = session
        welcome.shards.extend(link.address for link in self._shards.links)
        welcome.shard_tensor_ports.extend(link.tensor_port for link in self._shards.links)

    def worker_lost(self, session: WorkerSession, reason: str) -> None:
        """End a worker's data streams to the shards."""
        self._open_streams.pop(session.number, None)
        self._weights.pop(session.number, None)
        self._shards.send_to_all(pb.WorkerLeft(session=session.number, reason=reason))

    def _worker_exchanges(self, link: ShardLink, body: pb.WorkerExchanges) -> None:
        shards = self._open_streams.get(body.session)
        if shards is None:
            return
        shards.add(link)
        if len(shards) == len(self._shards.links):
            self._feed(ev.DataStreamOpened(body.session))

    def _worker_gone(self, link: ShardLink, body: pb.WorkerGone) -> None:
        session = self._sessions.get(body.session)
        if session is not None:
            reason = f"{link}: {body.reason}"
            log.info("worker %s: %s", session.name, reason)
            session.mailbox.close(reason)

    # ---- chunks from workers ----

    def _arrived(self, link: ShardLink, body: pb.ArrivedPiece) -> None:
        """Let the core decide on a piece of a chunk in a shard, unless it is stale."""
        header = body.header
        refusal = self._core.check_chunk(body.session, header)
        elements = self._core.expected_elements(header.job)
        if refusal is None and not (elements and header.index in link.stripe.chunk_indices(elements)):
            refusal = Refusal(f"the chunk's index is {header.index}, expected a chunk of {link}")
        if refusal is None:
            self._feed(ev.ChunkArrived(body.session, header, arrival=body.arrival))
            return
        if refusal != self._last_refusal:  # logged once, not for every chunk of a lease
            log.info("worker session %d: dropped a chunk: %s", body.session, refusal)
            self._last_refusal = refusal
        link.send_order(discard_piece(header, body.arrival))

    def submit(self, orders: Sequence[ev.SumOrder], chunk: TensorChunk | None) -> None:
        """Send orders to the shards that have their payloads."""
        for order in orders:
            match order:
                case pb.DropSums():
                    self._sums_lost = False
                    self._shards.send_to_all(order)
                case pb.DropPieces():
                    self._shards.send_to_all(order)
                case pb.KeepPiece() if self._sums_lost:
                    discard = pb.DiscardPiece(job=order.job, chunk=order.chunk, arrival=order.arrival)
                    self._shards.link_of_chunk(order.chunk).send_order(discard)
                case _ if self._sums_lost and not isinstance(order, pb.DiscardPiece):
                    pass
                case _:
                    self._shards.link_of_chunk(order.chunk).send_order(order)
            if isinstance(order, pb.FinishSum) and not self._sums_lost:
                self._on_sum_finished(order.header)

    # ---- weights to workers ----

    def store_weights(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """Do nothing: the shards have their weights already."""

    def wake_senders(self) -> None:
        """Send weights to workers, once in this turn of the event loop."""
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._call_soon(self._send_weights)

    def _send_weights(self) -> None:
        self._wake_scheduled = False
        for session, weights in self._weights.items():
            parts = self._core.loads_of(session)
            while (header := self._core.next_weights(session)) is not None:
                weights.release(header, parts)
            for shard, order in weights.take_orders():
                self._shards.links[shard].send_order(order)

    def close(self) -> None:
        """Do nothing: this data plane has no threads."""
