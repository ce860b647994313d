"""Links of a simulated aggregator to its shards. What they carry is decided by the real group and data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.message import Message

from aggregator.core import events as ev
from aggregator.data_plane import DataPlane
from plane.group import PlaneGroup
from plane.messages import SequenceFilter, unwrap, wrap_order
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.errors import Refusal
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.tensors.reduction_tree import Node
from services.tensors.stripes import Stripe
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.job_model import CLUSTER, SimulationFailed, require
from tests.simulation.links import Link, is_end

if TYPE_CHECKING:
    from tests.simulation.sharded_tensors import ShardedTensors
    from tests.simulation.simulated_aggregator import SimulatedAggregator
    from tests.simulation.simulated_shard import ShardSession, SimulatedShard


class SimulatedShardLink:
    """Link to one shard, opened again whenever it breaks: in place of a `ShardLink`.

    Args:
        address: address of the shard.
        stripe: chunks of the shard.
        aggregator: this end.
        take_tensors: called with what the shard sends of its weights.
    """

    def __init__(
        self,
        address: str,
        stripe: Stripe,
        *,
        aggregator: SimulatedAggregator,
        take_tensors: Callable[[SimulatedShardLink, int, dict[int, int]], None],
    ) -> None:
        self.address = address
        self.stripe = stripe
        self.tensor_port = 0
        self.is_up = False
        self.local = None
        self.down_reason = "not connected yet"
        self.heard_seconds = 0.0
        self.payload: Any = None  # what comes with the report that is being handled
        self._aggregator = aggregator
        self._take_tensors = take_tensors
        self._links: Any = None
        self._link: Link | None = None
        self._numbers: Iterator[int] = count(1)
        self._in_order = SequenceFilter()

    def __str__(self) -> str:
        return f"shard {self.stripe.index} of {self.stripe.count}"

    def join(self, links: Any) -> None:
        """Take the group that this link is in."""
        self._links = links

    def describe(self, reason: str) -> str:
        """Return what the shard says, with its name."""
        return f"{self}: {reason}"

    def dial(self) -> None:
        """Connect to the shard, and retry until it is alive."""
        aggregator, shard = self._aggregator, self._aggregator.cluster.shards[self.stripe.index]
        if not shard.alive:
            aggregator.later(0.01 + aggregator.cluster.rng.random() ** 4, self.dial)
            return
        link = self._link = Link(aggregator.cluster, 0, pinged=True)
        link.connect(
            up_control=lambda number, body: shard.ordered(link, number, body),
            up_data=lambda opening, weights: shard.wrote(link, opening, weights),
            down_control=lambda number, body, *payload: self._reported(link, number, body, *payload),
            down_data=lambda number, weights: self._tensors_arrived(link, number, weights),
            lost_above=lambda reason: shard.aggregator_lost(link),
            lost_below=lambda reason: self._lost(link, reason),
            ends=(shard, aggregator),
        )
        aggregator.cluster.links.append(link)
        self._numbers, self._in_order = count(1), SequenceFilter()
        hello = make_hello(
            Role.AGGREGATOR,
            "aggregator",
            incarnation=aggregator.title,
            epoch_seen=aggregator.epoch,
            cluster=CLUSTER,
            shard_index=self.stripe.index,
            shard_count=self.stripe.count,
        )
        link.up_control.send(0, wrap_order(hello))

    def _reported(self, link: Link, number: int, body: Any, payload: Any = None) -> None:
        aggregator = self._aggregator
        if not aggregator.alive or link is not self._link:
            return
        if is_end(number):
            link.closed(body)
            return
        report = unwrap(body)
        assert report is not None
        self.heard_seconds = aggregator.now
        if not self._in_order.is_new(number):
            return
        if isinstance(report, cluster.Hello):
            shard = (self.stripe.index, self.stripe.count)
            expected = HelloExpectations("aggregator", Role.AGGREGATOR, shard=shard, cluster=CLUSTER)
            refusal = check_hello(report, expected)
            if refusal is not None:
                raise SimulationFailed(f"{self}: {refusal}")
            aggregator.cluster.obeyed(str(self), aggregator)
            self.is_up, self.down_reason = True, ""
            self._links.link_up(self)
            return
        self.payload = payload
        self._links.take_report(self, report)

    def _tensors_arrived(self, link: Link, number: int, weights: dict[int, int]) -> None:
        if self._aggregator.alive and link is self._link and self.is_up:
            self._take_tensors(self, number, weights)

    def _lost(self, link: Link, reason: str) -> None:
        if link is not self._link:
            return
        self._link = None
        if link.obeyed_epoch:
            self._aggregator.exceed(link.obeyed_epoch)
        self.close(reason)
        self.down_reason = reason
        self._links.report_waiting()
        self._aggregator.later(0.01 + self._aggregator.cluster.rng.random() ** 4 * 3, self.dial)

    def send_order(self, body: Message) -> None:
        """Send an order; drop it while the link is down."""
        if self.is_up and self._link is not None:
            order = wrap_order(body)
            self._aggregator.cluster.trace(str(self), "<=", order)
            self._link.up_control.send(next(self._numbers), order)

    def send_weights(self, opening: int, weights: dict[int, int]) -> None:
        """Send the shard its weights of a checkpoint, by chunk."""
        if self.is_up and self._link is not None:
            self._link.up_data.send(opening, weights)

    def close(self, reason: str) -> None:
        """End the connection; another one is opened."""
        if not self.is_up:
            return
        self.is_up, self.down_reason = False, reason
        self._links.link_down(self, reason)
        if self._link is not None:
            self._link.abandon(reason)

    def idle_session(self) -> ShardSession | None:
        """Return what the shard keeps of this aggregator, if it has nothing to do and no message is on its way."""
        link = self._link
        if (
            link is None
            or not link.up
            or not self.is_up
            or link.up_control.in_flight
            or link.down_control.in_flight
        ):
            return None
        shard: SimulatedShard = link.ends[0]
        session = shard.session
        if session is None or session.link is not link or shard.waiting_work or session.arrivals.untold:
            return None
        undecided = len(session.arrivals)
        require(not undecided, f"{self}: no decision on {undecided} pieces that arrived")
        return session

    def beat(self) -> None:
        """Send a heartbeat, and give up a shard that is silent."""
        self.send_order(cluster.Heartbeat())
        silent = self._aggregator.now - self.heard_seconds
        if silent > STANDARD_TIMEOUTS.deaf:
            self.close(f"silent for {silent:.1f} s")


class _Session(NamedTuple):
    """A worker's session, as `WorkerSession`."""

    number: int
    name: str
    incarnation: str
    mailbox: _Mailbox


class _Mailbox:
    """Closes a worker's session, as the real one's mailbox does."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close

    def close(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """Close the session; no simulated peer looks at the status."""
        del code
        self._close(reason)


class ShardedPayloads:
    """What an aggregator with shards has in place of payloads: the real group and data plane over simulated links.

    Args:
        aggregator: the aggregator.
        on_sums_finished: called with the order by which sums are finished.
        tensors: the optimizer's tensors.
    """

    def __init__(
        self,
        aggregator: SimulatedAggregator,
        on_sums_finished: Callable[[pb.FinishSum], None],
        tensors: ShardedTensors,
    ) -> None:
        self._aggregator = aggregator
        self._sessions: dict[int, _Session] = {}
        shards = aggregator.cluster.scenario.shards
        self.links = [
            SimulatedShardLink(
                f"host-{index}:1",
                Stripe(index, shards),
                aggregator=aggregator,
                take_tensors=tensors.take_tensors,
            )
            for index in range(shards)
        ]
        links: Any = self.links  # have what a group calls
        self.group = PlaneGroup(links)
        tensors.use(self)
        self.group.on_ready.append(aggregator.dial)
        self.group.on_lost.append(aggregator.shards_lost)
        sessions: Any = self  # has what a data plane calls
        self.plane = DataPlane(
            self.group,
            core=aggregator.core,
            sessions=sessions,
            feed=aggregator.feed,
            on_sums_finished=on_sums_finished,
            on_failure=self._fail,
            shards=links,
        )

    def _fail(self, error: Exception) -> None:
        raise SimulationFailed(f"a shard fails: {error}")

    # ---- as `WorkerSessions` ----

    def get(self, number: int) -> _Session | None:
        """Return a worker's session; None if it is closed."""
        return self._sessions.get(number)

    def close_all(self, reason: str) -> None:
        """End the sessions of all workers."""
        for number in list(self._sessions):
            self._close(number, reason)

    # ---- workers ----

    def check_ready(self) -> Refusal | None:
        """Return which shard is not connected; None if all are."""
        return self.plane.check_ready()

    def open(self, number: int, hello: cluster.Hello) -> None:
        """Announce a worker to the shards."""
        mailbox = _Mailbox(partial(self._close, number))
        session: Any = _Session(number, hello.name, hello.incarnation, mailbox)
        self._sessions[number] = session
        self.plane.worker_connected(session)

    def _close(self, number: int, reason: str) -> None:
        """End a worker's streams; what waits for their end is told afterwards."""
        link = self._aggregator.sessions.get(number)
        if link is not None:
            link.close(reason)
            self._aggregator.later(0.0, self._aggregator.worker_lost, link, reason)

    def closed(self, number: int, reason: str) -> None:
        """Note the end of a worker's session."""
        session: Any = self._sessions.pop(number, None)
        if session is not None:
            self.plane.worker_lost(session, reason)

    # ---- chunks ----

    def submit(self, orders: list[ev.PlaneOrder]) -> None:
        """Send orders to the shards that have their payloads."""
        if orders:
            self.plane.submit(orders)

    def dial(self) -> None:
        """Connect to all shards."""
        for link in self.links:
            link.dial()

    def beat(self) -> None:
        """Send heartbeats, and give up silent shards."""
        for link in self.links:
            link.beat()

    def stored(self, job: str) -> tuple[set[tuple[int, Node]], set[tuple[int, int, int]]] | None:
        """Return a job's sums and pieces in all shards; None while orders or reports are on their way."""
        sums: set[tuple[int, Node]] = set()
        pieces: set[tuple[int, int, int]] = set()
        for link in self.links:
            session = link.idle_session()
            if session is None:
                return None
            if job in session.sums:
                sums |= session.sums[job].kept.keys()
                pieces |= session.sums[job].pieces.keys()
        return sums, pieces
