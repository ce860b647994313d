"""All planes that have a job's tensors, as one: the plane in this process, or the shards of an aggregator.

A job's tensors are spread over all planes, so they are lost with any one of them. When a link breaks, all links are
closed and opened again, and every plane drops its tensors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from plane.link import PlaneLink
from plane.plane import Plane
from services.errors import Refusal
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.links import run_until_first_ends

log = logging.getLogger("tiermesh")


class PlaneGroup:
    """Links to all planes.

    Args:
        links: links by the plane's number.
        beat_seconds: period of heartbeats.

    Attributes:
        links: as above.
        ready: whether all links are up.
        on_ready: callbacks for when the last link has come up, called in order.
        on_lost: callbacks for the loss of a link after `on_ready`, called with the plane and the reason.
        on_waiting: callbacks while a link is down, called with the plane and the reason whenever they change.
        report_handlers: handlers of reports by message type, called on the event loop while `ready`.
    """

    def __init__(self, links: Sequence[PlaneLink], beat_seconds: float = STANDARD_TIMEOUTS.beat) -> None:
        self.links = links
        self.ready = all(link.is_up for link in links)
        self.on_ready: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self.on_waiting: list[Callable[[str], None]] = []
        self.report_handlers: dict[type[Message], Callable[[Any, Any], None]] = {}
        self._beat_seconds = beat_seconds
        self._reported_wait = ""
        for link in links:
            link.join(self)

    @property
    def local(self) -> Plane | None:
        """The plane in this process, if it is the only one; None for planes in other processes."""
        return self.links[0].local

    async def run(self) -> None:
        """Keep all links up until cancelled.

        Raises:
            EpochBehind: a shard has obeyed a newer epoch, whose aggregator is gone.
        """
        if self.ready:
            self._call_ready()
        await run_until_first_ends(self._exchange_heartbeats(), *(link.run() for link in self.links))

    def _call_ready(self) -> None:
        for callback in self.on_ready:
            callback()

    def link_of_chunk(self, chunk: int) -> PlaneLink:
        """Return the link to the plane of a chunk of the layout."""
        return self.links[chunk % len(self.links)]

    def send_order(self, body: Message) -> None:
        """Queue an order: one about chunks to their plane, any other to every plane."""
        chunk = body.chunks[0] if hasattr(body, "chunks") else getattr(body, "chunk", None)
        for link in self.links if chunk is None else [self.link_of_chunk(chunk)]:
            link.send_order(body)

    def check_ready(self) -> Refusal | None:
        """Return which plane is not connected, and why; None if all are."""
        return next((Refusal(f"{link}: {link.down_reason}") for link in self.links if not link.is_up), None)

    # ---- as `PlaneLinks` ----

    def report_waiting(self) -> None:
        """Tell which plane is not connected, and why, when that has changed."""
        refusal = self.check_ready()
        text = refusal.reason if refusal is not None else ""
        if text and text != self._reported_wait:
            for callback in self.on_waiting:
                callback(text)
        self._reported_wait = text

    def link_up(self, link: PlaneLink) -> None:
        """Begin once all links are up."""
        self.report_waiting()
        if not self.ready and all(each.is_up for each in self.links):
            self.ready = True
            log.info("all %d shards are connected", len(self.links))
            self._call_ready()

    def link_down(self, link: PlaneLink, reason: str) -> None:
        """Have all planes start over."""
        if not self.ready:
            return
        self.ready = False
        text = f"{link}: {reason}"
        for other in self.links:
            if other is not link:
                other.close(f"{link} is lost: all shards start over")
        for callback in self.on_lost:
            callback(text)

    def take_report(self, link: PlaneLink, body: Message) -> None:
        """Give a report to its handler."""
        handler = self.report_handlers.get(type(body))
        if self.ready and handler is not None:
            handler(link, body)

    async def _exchange_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            for link in self.links:
                link.beat()
