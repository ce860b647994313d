"""The worker's service: keeps the streams to its aggregator up, and carries out what its core decides.

The core and all bookkeeping run on the event loop, the mesh on the device thread; tensors travel in lanes.py.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc

from protos import cluster_pb2 as pb
from services.checksums import encode
from services.control import Reader
from services.data_streams import DataStreams
from services.envelope import seal, unseal
from services.errors import Refused
from services.ladder import Ladder
from services.metrics import WorkerMetrics
from services.security import Security
from services.server import open_channel
from services.streams import (
    HELLO_SECONDS,
    LINK_ENDS,
    Backoff,
    Heartbeats,
    LinkClosed,
    Mailbox,
    raise_status,
    until_first_ends,
    why_ended,
    write,
)
from services.tensors.wire import TensorChunk
from worker import events as ev
from worker.core import WorkerCore
from worker.device import DeviceThread
from worker.lanes import Lanes

log = logging.getLogger("tiermesh.worker")


class WorkerService:
    """One worker."""

    service_names: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        name: str,
        aggregator: str,
        security: Security,
        data_dir: Path | None,
        metrics: WorkerMetrics,
        allowed_models: Collection[str] = (),
        shared_memory: bool = True,
    ) -> None:
        self.name = name
        self._shared_memory = shared_memory
        self._aggregator = aggregator
        self._streams = DataStreams("/tiermesh.Cluster/Exchange", security)
        self._security = security
        self._data_dir = data_dir
        self._allowed_models = allowed_models
        self._metrics = metrics
        self._incarnation = uuid.uuid4().hex
        self._core = WorkerCore(name=name)
        self._mailbox: Mailbox[pb.WorkerMessage] = Mailbox()
        self._lanes: Lanes | None = None

    # ---- life ----

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """A worker serves health and reflection only."""
        return []

    async def start(self) -> None:
        """Make the device thread ready."""
        self._loop = asyncio.get_running_loop()
        self._device = DeviceThread(self._tell, self._data_dir, self._metrics, self._allowed_models)

    async def stop(self) -> None:
        """Give up what is being computed and free the mesh."""
        self._mailbox.close("the worker stops")
        await self._loop.run_in_executor(None, self._device.close)

    async def run(self) -> None:
        """Work for the aggregator until cancelled, looking for it anew when it is gone."""
        backoff = Backoff()
        said = ""
        while True:
            try:
                await self._attend(backoff)
                reason = "it ended the stream"
            except LINK_ENDS as error:
                reason = why_ended(error, "Welcome")
            self._feed(ev.Disconnected())
            self._metrics.connected(False)
            if reason != said:
                log.warning("aggregator %s: %s; trying again", self._aggregator, reason)
                said = reason
            await backoff.wait()

    async def _attend(self, backoff: Backoff) -> None:
        control = open_channel(self._aggregator, self._security, own_connection=True)
        async with control:
            self._mailbox = Mailbox()
            self._feed(ev.Connected())
            attend = control.stream_stream(
                "/tiermesh.Cluster/Attend",
                request_serializer=encode,
            )()
            hello = self._core.hello(self._incarnation)
            await attend.write(seal(pb.WorkerMessage, self._core.epoch, hello))
            orders = Reader(attend.read, pb.WorkerCommand, "Attend")
            first = await asyncio.wait_for(orders.next(), HELLO_SECONDS)
            if first is None:
                await raise_status(attend)
                return
            welcome = unseal(first)
            if not isinstance(welcome, pb.Welcome):
                raise LinkClosed("its first message is no Welcome")
            log.info("works for aggregator %s at %s, epoch %d", welcome.name, self._aggregator, first.epoch)
            ladder = ladder_of(welcome)
            backoff.limit(ladder.retry)
            self._feed(ev.Ordered(first.epoch, welcome))
            self._metrics.connected(True)
            self._device.share(False)  # until a peer has seen this process's memory
            self._lanes = Lanes(
                self._aggregator,
                welcome,
                streams=self._streams,
                shared_memory=self._shared_memory,
                core=self._core,
                device=self._device,
                incarnation=self._incarnation,
                feed=self._feed,
                metrics=self._metrics,
                up=backoff.reset,
            )
            heartbeats = Heartbeats(ladder, self._beat)
            try:
                await until_first_ends(
                    self._take_orders(attend, orders, heartbeats),
                    self._say(attend),
                    self._lanes.run(),
                    heartbeats.run(),
                )
            finally:
                self._lanes = None

    # ---- the core ----

    def _feed(self, event: ev.Input, chunk: TensorChunk | None = None) -> None:
        for effect in self._core.handle(event):
            if isinstance(effect, ev.Say):
                self._mailbox.put(seal(pb.WorkerMessage, self._core.epoch, effect.body))
            elif isinstance(effect, ev.BuildLater):
                self._loop.call_later(effect.seconds, self._feed, ev.BuildDue(effect.attempt))
            else:
                self._device.carry_out(effect, chunk)
        if self._lanes is not None and not isinstance(event, ev.WeightsArrived):  # they bring nothing to send
            self._lanes.wake()

    def _tell(self, event: ev.Input) -> None:
        """From the device thread."""
        self._loop.call_soon_threadsafe(self._feed, event)

    # ---- control ----

    async def _take_orders(
        self, attend: Any, orders: Reader[pb.WorkerCommand], heartbeats: Heartbeats
    ) -> None:
        while (command := await orders.next()) is not None:
            heartbeats.heard()
            body = unseal(command)
            if isinstance(body, pb.Leave):
                log.info("job %s: %s", body.job, body.reason)
            if body is not None:
                self._feed(ev.Ordered(command.epoch, body))
        await raise_status(attend)

    async def _say(self, attend: Any) -> None:
        while True:
            await write(attend, await self._mailbox.take())

    def _beat(self) -> None:
        self._mailbox.put(seal(pb.WorkerMessage, self._core.epoch, pb.Heartbeat()))


def ladder_of(welcome: pb.Welcome) -> Ladder:
    """The timeouts of the cluster that a worker is welcome in.

    Raises:
        LinkClosed: its heartbeat is no time: the aggregator is damaged, or something else.
    """
    try:
        return Ladder.of(welcome.heartbeat_seconds)
    except Refused as refused:
        raise LinkClosed(f"its Welcome names a {refused}") from None
