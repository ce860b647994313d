"""An aggregator's shards together: the cluster works while all of them are there, and starts over when one is lost.

Tensors that are spread over shards are lost with one of them. So when a link breaks, all are made anew, and every shard
drops what it holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from aggregator.shards.client.link import ShardLink
from protos import cluster_pb2 as cluster
from protos.jobs_pb2 import ShardStatus
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.links import run_until_first_ends
from services.transport.security import Security

log = logging.getLogger("tiermesh.aggregator")


class ShardGroup:
    """All shards of this aggregator.

    Args:
        addresses: `HOST:PORT` of each, in the order of their numbers.
        security: certificates to show and to believe.
        name: of this aggregator.
        incarnation: of this process.
        epoch: of this aggregator.
        timeouts: when both sides speak (`beat`), when a shard is silent (`deaf`) or slow (`stall`).

    Attributes:
        links: one each.
        ready: whether all are up.
        on_ready: called, one after the other, when the last of them has come up.
        on_lost: called, after those, when one is lost; with which, and why.
        on_waiting: called while they are not all up, with which is waited for, and why, whenever that has changed.
        takers: who takes a report, by its type; called on the event loop while `ready`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        *,
        name: str,
        incarnation: str,
        epoch: int,
        timeouts: Timeouts,
    ) -> None:
        self.ready = False
        self.on_ready: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self.on_waiting: list[Callable[[str], None]] = []
        self._said = ""
        self.takers: dict[type[Message], Callable[[ShardLink, Any], None]] = {}
        self._timeouts = timeouts
        self.links = [
            ShardLink(
                address,
                Stripe(index, len(addresses)),
                security=security,
                name=name,
                incarnation=incarnation,
                epoch=epoch,
                timeouts=timeouts,
                came=self._came,
                went=self._went,
                failed=self._say_what_is_waited_for,
                reported=self._reported,
            )
            for index, address in enumerate(addresses)
        ]

    async def run(self) -> None:
        """Keep all links up until cancelled.

        Raises:
            Deposed: a shard obeys a newer aggregator.
        """
        await run_until_first_ends(self._keep_in_touch(), *(link.keep_up() for link in self.links))

    def of_chunk(self, chunk: int) -> ShardLink:
        """The link to the shard that holds a chunk of the layout."""
        return self.links[chunk % len(self.links)]

    def order_all(self, body: Message) -> None:
        """Send an order to every shard."""
        for link in self.links:
            link.order(body)

    def why_not_ready(self) -> str:
        """The first shard that is waited for, and why; empty if all are up."""
        return next((f"{link}: {link.why_down}" for link in self.links if not link.up), "")

    def status(self) -> list[ShardStatus]:
        """The shards as people see them."""
        now = asyncio.get_running_loop().time()
        return [
            ShardStatus(
                index=link.stripe.index,
                address=link.address,
                name=link.name,
                detail=link.why_down,
                seconds_since_heard=now - link.heard_seconds if link.up else 0.0,
            )
            for link in self.links
        ]

    def _say_what_is_waited_for(self) -> None:
        text = self.why_not_ready()
        if text and text != self._said:
            for call in self.on_waiting:
                call(text)
        self._said = text

    def _came(self, link: ShardLink) -> None:
        self._say_what_is_waited_for()
        if not self.ready and all(each.up for each in self.links):
            self.ready = True
            log.info("all %d shards are there", len(self.links))
            for call in self.on_ready:
                call()

    def _went(self, link: ShardLink, reason: str) -> None:
        if not self.ready:
            return
        self.ready = False
        text = f"{link}: {reason}"
        for other in self.links:
            if other is not link:
                other.close(f"{link} is lost: all start over")
        for call in self.on_lost:
            call(text)

    def _reported(self, link: ShardLink, body: Message) -> None:
        taker = self.takers.get(type(body))
        if self.ready and taker is not None:
            taker(link, body)

    async def _keep_in_touch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self.order_all(cluster.Heartbeat())
            for link in self.links:
                silent = loop.time() - link.heard_seconds
                if link.up and silent > self._timeouts.deaf:
                    link.close(f"silent for {silent:.1f} s")
