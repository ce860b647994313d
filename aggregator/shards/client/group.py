"""All shards of an aggregator: the cluster works while all of them are connected.

A job's tensors are spread over all shards, so they are lost with any one of them. When a link breaks, all links are
closed and opened again, and every shard drops its tensors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from aggregator.shards.client.link import ShardLink
from protos import cluster_pb2
from protos.cluster_pb2 import Predecessor
from protos.jobs_pb2 import ShardStatus
from services.errors import Refusal
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.links import run_until_first_ends
from services.transport.security import Security

log = logging.getLogger("tiermesh.aggregator")


class ShardGroup:
    """Links to all shards of this aggregator.

    Args:
        addresses: `HOST:PORT` of each shard, in the order of their numbers.
        security: this process's certificates, and those that it trusts.
        name: name of this aggregator.
        incarnation: incarnation of this process.
        epoch: epoch of this aggregator.
        cluster: identity of its cluster.
        timeouts: `beat` is the heartbeat's period, `deaf` the longest silence of a shard, `stall` the longest work.
        make_link: makes the link to a shard.

    Attributes:
        links: links by the shard's number.
        ready: whether all links are up.
        on_ready: callbacks for when the last link has come up, called in order.
        on_lost: callbacks for the loss of a link after `on_ready`, called with the shard and the reason.
        on_killed: callbacks for a shard whose last process was killed by a fault, called with its link and the fault.
        on_waiting: callbacks while a link is down, called with the shard and the reason whenever they change.
        report_handlers: handlers of reports by message type, called on the event loop while `ready`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        *,
        name: str,
        incarnation: str,
        epoch: int,
        cluster: str,
        timeouts: Timeouts,
        make_link: Callable[..., ShardLink] = ShardLink,
    ) -> None:
        self.ready = False
        self.on_ready: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self.on_killed: list[Callable[[ShardLink, Predecessor], None]] = []
        self.on_waiting: list[Callable[[str], None]] = []
        self._reported_wait = ""
        self.report_handlers: dict[type[Message], Callable[[ShardLink, Any], None]] = {}
        self._timeouts = timeouts
        self.links = [
            make_link(
                address,
                Stripe(index, len(addresses)),
                security=security,
                name=name,
                incarnation=incarnation,
                epoch=epoch,
                cluster=cluster,
                timeouts=timeouts,
                on_up=self._link_up,
                on_down=self._link_down,
                on_connect_error=self._report_waiting,
                on_report=self._handle_report,
            )
            for index, address in enumerate(addresses)
        ]

    async def run(self) -> None:
        """Keep all links up until cancelled.

        Raises:
            EpochBehind: a shard has obeyed a newer epoch, whose aggregator is gone.
        """
        await run_until_first_ends(self._exchange_heartbeats(), *(link.run() for link in self.links))

    def link_of_chunk(self, chunk: int) -> ShardLink:
        """Return the link to the shard of a chunk of the layout."""
        return self.links[chunk % len(self.links)]

    def send_to_all(self, body: Message) -> None:
        """Queue an order to every shard."""
        for link in self.links:
            link.send_order(body)

    def check_ready(self) -> Refusal | None:
        """Return which shard is not connected, and why; None if all are."""
        return next((Refusal(f"{link}: {link.down_reason}") for link in self.links if not link.is_up), None)

    def status(self) -> list[ShardStatus]:
        """Return the status of each shard, for people."""
        now = asyncio.get_running_loop().time()
        return [
            ShardStatus(
                index=link.stripe.index,
                address=link.address,
                name=link.name,
                detail=link.down_reason,
                seconds_since_heard=now - link.last_heard_seconds if link.is_up else 0.0,
            )
            for link in self.links
        ]

    def _report_waiting(self) -> None:
        refusal = self.check_ready()
        text = refusal.reason if refusal is not None else ""
        if text and text != self._reported_wait:
            for callback in self.on_waiting:
                callback(text)
        self._reported_wait = text

    def _link_up(self, link: ShardLink) -> None:
        self._report_waiting()
        if link.killed is not None:
            for on_killed in self.on_killed:
                on_killed(link, link.killed)
        if not self.ready and all(each.is_up for each in self.links):
            self.ready = True
            log.info("all %d shards are connected", len(self.links))
            for callback in self.on_ready:
                callback()

    def _link_down(self, link: ShardLink, reason: str) -> None:
        if not self.ready:
            return
        self.ready = False
        text = f"{link}: {reason}"
        for other in self.links:
            if other is not link:
                other.close(f"{link} is lost: all shards start over")
        for callback in self.on_lost:
            callback(text)

    def _handle_report(self, link: ShardLink, body: Message) -> None:
        handler = self.report_handlers.get(type(body))
        if self.ready and handler is not None:
            handler(link, body)

    async def _exchange_heartbeats(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self.send_to_all(cluster_pb2.Heartbeat())
            for link in self.links:
                silent_seconds = loop.time() - link.last_heard_seconds
                if link.is_up and silent_seconds > self._timeouts.deaf:
                    link.close(f"silent for {silent_seconds:.1f} s")
