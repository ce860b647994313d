"""The data plane of an aggregator with shards: payloads are in the shards, what is done with them is ordered from here.

The core decides as it does without shards; each of its effects on a payload is routed to the shard that holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.link import ShardLink
from aggregator.shards.messages import to_node, to_order
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.protocol.versions import Version
from services.tensors.chunk_messages import Message, TensorChunk

log = logging.getLogger("tiermesh.aggregator")


class ShardedDataPlane:
    """A `DataPlane`.

    Args:
        shards: that hold the payloads.
        core: says what is stale, and what each worker is to be sent.
        sessions: of the workers that attend.
        feed: gives the core an input.
        finished: takes the header of a finished sum, for the optimizer.
    """

    def __init__(
        self,
        shards: ShardGroup,
        *,
        core: AggregatorCore,
        sessions: WorkerSessions,
        feed: Callable[[ev.DataStreamOpened | ev.ChunkArrived], None],
        finished: Callable[[ChunkHeader], None],
    ) -> None:
        self._shards = shards
        self._core = core
        self._sessions = sessions
        self._feed = feed
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._arriving: tuple[ShardLink, int] | None = None  # the payload that the core is being told of
        self._void = True  # the core may believe in sums that no shard holds, until it drops them all
        self._exchanging: dict[int, set[ShardLink]] = {}  # by session: where its data streams are up
        self._sent: dict[
            int, tuple[Version, list[int]]
        ] = {}  # by session: how much it was to be sent, by shard
        self._last_refusal: Refusal | None = None
        self._waking = False
        shards.on_lost.append(self._lost)
        shards.takers.update(
            {
                pb.ArrivedChunk: self._arrived,
                pb.WorkerExchanges: self._worker_exchanges,
                pb.WorkerGone: self._worker_gone,
            }
        )

    def _lost(self, reason: str) -> None:
        """All payloads are gone: workers start over too."""
        self._void, self._arriving = True, None
        self._sessions.close_all(reason)

    # ---- workers ----

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Refuse: tensors never come here."""
        addresses = ", ".join(link.address for link in self._shards.links)
        text = f"tensors of this aggregator go to its shards, as its Welcome says: {addresses}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def check_ready(self) -> Refusal | None:
        """Return which shard is waited for; None if all are there."""
        reason = self._shards.why_not_ready()
        return Refusal(reason) if reason else None

    def worker_connected(self, session: WorkerSession) -> None:
        """Tell all shards of it, before it comes to them."""
        self._exchanging[session.number] = set()
        self._shards.order_all(
            pb.WorkerAttends(session=session.number, incarnation=session.incarnation, name=session.name)
        )

    def fill_welcome(self, session: int, welcome: cluster.Welcome) -> None:
        """Say where the shards are."""
        welcome.session = session
        welcome.shards.extend(link.address for link in self._shards.links)
        welcome.shard_tensor_ports.extend(link.tensor_port for link in self._shards.links)

    def worker_lost(self, session: WorkerSession, reason: str) -> None:
        """Its streams to the shards end too."""
        self._exchanging.pop(session.number, None)
        self._sent.pop(session.number, None)
        self._shards.order_all(pb.WorkerLeft(session=session.number, reason=reason))

    def _worker_exchanges(self, link: ShardLink, body: pb.WorkerExchanges) -> None:
        exchanging = self._exchanging.get(body.session)
        if exchanging is None:
            return
        exchanging.add(link)
        if len(exchanging) == len(self._shards.links):
            self._feed(ev.DataStreamOpened(body.session))

    def _worker_gone(self, link: ShardLink, body: pb.WorkerGone) -> None:
        session = self._sessions.get(body.session)
        if session is not None:
            reason = f"{link}: {body.reason}"
            log.info("worker %s: %s", session.name, reason)
            session.mailbox.close(reason)

    # ---- up ----

    def _arrived(self, link: ShardLink, body: pb.ArrivedChunk) -> None:
        """A payload is in a shard: whatever the core does not have kept is discarded."""
        self._arriving = link, body.arrival
        header = body.header
        refusal = self._core.check_chunk(body.session, header)
        elements = self._core.expected_elements(header.job)
        if refusal is None and not (elements and header.index in link.stripe.chunk_indices(elements)):
            refusal = Refusal(f"its index is {header.index}, which is not one of {link}")
        if refusal is None:
            self._feed(ev.ChunkArrived(body.session, header))
        elif refusal != self._last_refusal:  # logged once, not for every chunk of a lease
            log.info("session %d: dropped a chunk: %s", body.session, refusal)
            self._last_refusal = refusal
        if self._arriving is not None:
            self._arriving = None
            link.order(pb.DiscardChunk(arrival=body.arrival))

    def submit(self, effects: Sequence[ev.SumEffect], chunk: TensorChunk | None) -> None:
        """Route effects to the shards that hold their payloads."""
        for effect in effects:
            match effect:
                case ev.DropAll():
                    self._void = False
                    self._shards.order_all(pb.DropSums())
                case _ if self._void:
                    pass
                case ev.Keep():
                    assert self._arriving is not None
                    link, arrival = self._arriving
                    self._arriving = None
                    link.order(pb.KeepSum(arrival=arrival, node=to_node(effect.node)))
                case ev.Forward():
                    self._shards.of_chunk(effect.header.index).order(to_order(effect))
                    self._finished(effect.header)
                case _:
                    self._shards.of_chunk(effect.chunk).order(to_order(effect))

    # ---- down ----

    def store_weights(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """The shard has it already."""

    def wake_senders(self) -> None:
        """Once in this turn of the event loop."""
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._send_weights)

    def _send_weights(self) -> None:
        self._waking = False
        for session in self._exchanging:
            changed: set[int] = set()
            while (header := self._core.next_weights(session)) is not None:
                due = Version(header.generation, header.step)
                version, limits = self._sent.get(session, (None, []))
                if version != due:
                    limits = [0] * len(self._shards.links)
                    self._sent[session] = due, limits
                stripe = self._shards.of_chunk(header.index).stripe
                limits[stripe.index] = stripe.to_local(header.index) + 1
                changed.add(stripe.index)
            for index in changed:
                (generation, step), limits = self._sent[session]
                order = pb.SendUpTo(session=session, generation=generation, step=step, limit=limits[index])
                self._shards.links[index].order(order)

    def close(self) -> None:
        """There are no threads."""
