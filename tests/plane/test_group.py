"""All shards of an aggregator: ready when all links are up, lost with one, and the missing shard is named."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import pytest

from aggregator.shards.link import ShardLink
from aggregator.shards.service import ShardService
from plane.group import PlaneGroup
from plane.link import PlaneLink
from plane.messages import wrap_report
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.protocol.hello import Role, make_hello
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.security import Security
from services.transport.server import RoleServer, start_server
from tests.support.damaging import DamagingPeer
from tests.support.ports import free_port

CLUSTER = "c0ffee00c0ffee00"
LIMIT_SECONDS = 60
TIMEOUTS = Timeouts.from_heartbeat(5.0, {"tick": 0.05, "beat": 0.1, "retry": 0.15})
"""Links are tried again soon; no pause of this machine makes a shard count as silent."""


class Hosts:
    """Two shard services in this process, each at an address that stays the same after a restart."""

    def __init__(self) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self._folder = tempfile.TemporaryDirectory()
        self._running: dict[int, tuple[ShardService, RoleServer]] = {}

    async def start(self, index: int) -> None:
        service = ShardService(
            name=f"s{index}", state_dir=Path(self._folder.name), metrics=AggregatorMetrics()
        )
        await service.start()
        names = service.service_names
        server = await start_server(self.addresses[index], Security(), service.handlers(), names)
        self._running[index] = service, server

    async def stop(self, index: int) -> None:
        service, server = self._running.pop(index)
        await service.stop()
        await server.stop(0)

    async def stop_all(self) -> None:
        for index in list(self._running):
            await self.stop(index)
        self._folder.cleanup()


def make_links(addresses: Sequence[str], timeouts: Timeouts) -> list[ShardLink]:
    return [
        ShardLink(
            address,
            Stripe(index, len(addresses)),
            security=Security(),
            name="agg",
            incarnation="i",
            epoch=3,
            cluster=CLUSTER,
            timeouts=timeouts,
        )
        for index, address in enumerate(addresses)
    ]


class GroupEvents:
    """Lines about the calls of a group's callbacks, in order."""

    def __init__(self, shards: PlaneGroup) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        shards.on_ready.append(lambda: self._lines.put_nowait("ready"))
        shards.on_lost.append(lambda reason: self._lines.put_nowait(f"lost {reason}"))
        shards.on_waiting.append(lambda reason: self._lines.put_nowait(f"waiting {reason}"))

    async def wait_for_line(self, *parts: str) -> str:
        """Return the next line that contains all these parts; skip others."""
        while True:
            line = await self._lines.get()
            if all(part in line for part in parts):
                return line


def with_shards(scenario: Callable[[Hosts, PlaneGroup, GroupEvents], Awaitable[None]]) -> None:
    async def run() -> None:
        hosts = Hosts()
        shards = PlaneGroup(make_links(hosts.addresses, TIMEOUTS), TIMEOUTS.beat)
        events = GroupEvents(shards)
        running = asyncio.ensure_future(shards.run())
        try:
            await scenario(hosts, shards, events)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await hosts.stop_all()

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_the_group_is_ready_with_all_shards_and_names_the_missing_one() -> None:
    async def scenario(hosts: Hosts, shards: PlaneGroup, events: GroupEvents) -> None:
        assert "shard 0 of 2" in await events.wait_for_line("waiting")
        await hosts.start(0)
        assert hosts.addresses[1] in await events.wait_for_line("waiting", "shard 1 of 2")
        assert "shard 1 of 2" in str(shards.check_ready())
        first, second = (link.status() for link in shards.links if isinstance(link, ShardLink))
        assert (first.name, first.detail) == ("s0", "")
        assert (second.name, bool(second.detail)) == ("", True)
        await hosts.start(1)
        await events.wait_for_line("ready")
        assert (shards.ready, shards.check_ready()) == (True, None)

    with_shards(scenario)


def test_all_shards_start_over_when_one_is_lost() -> None:
    async def scenario(hosts: Hosts, shards: PlaneGroup, events: GroupEvents) -> None:
        await hosts.start(0)
        await hosts.start(1)
        await events.wait_for_line("ready")
        await hosts.stop(1)
        await events.wait_for_line("lost", "shard 1 of 2")
        assert not shards.ready
        await hosts.start(1)
        await events.wait_for_line("ready")

    with_shards(scenario)


def test_a_process_that_is_not_a_shard_is_named() -> None:
    async def scenario(hosts: Hosts, shards: PlaneGroup, events: GroupEvents) -> None:
        handlers: list[grpc.GenericRpcHandler] = []
        server = await start_server(hosts.addresses[0], Security(), handlers, ())
        await events.wait_for_line("waiting", "shard 0", "not a shard", "--shards")
        await server.stop(0)

    with_shards(scenario)


def test_the_pause_between_attempts_to_connect_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    enough = asyncio.Event()

    class Hasty(Backoff):
        async def wait(self) -> None:
            waits.append(self.next_seconds())
            if len(waits) == 24:
                enough.set()
            await asyncio.sleep(0)

    async def scenario(hosts: Hosts, shards: PlaneGroup, events: GroupEvents) -> None:
        await enough.wait()

    monkeypatch.setattr("aggregator.shards.link.Backoff", Hasty)
    with_shards(scenario)
    assert max(waits) <= TIMEOUTS.retry


def test_orders_to_a_shard_that_is_down_are_dropped() -> None:
    async def scenario(hosts: Hosts, shards: PlaneGroup, events: GroupEvents) -> None:
        await events.wait_for_line("waiting")
        shards.send_order(cluster.Heartbeat())
        await hosts.start(0)
        await hosts.start(1)
        await events.wait_for_line("ready")
        answered: set[PlaneLink] = set()
        all_answered = asyncio.Event()

        def heartbeat_answered(link: PlaneLink, _: cluster.Heartbeat) -> None:
            answered.add(link)
            if len(answered) == len(shards.links):
                all_answered.set()

        shards.report_handlers[cluster.Heartbeat] = heartbeat_answered
        await all_answered.wait()

    with_shards(scenario)


def test_a_link_with_a_damaged_message_is_opened_again_at_once() -> None:
    async def scenario() -> None:
        hello, beat = (
            pb.PlaneReports(epoch=3, reports=[wrap_report(body)])
            for body in (make_hello(Role.AGGREGATOR, "s", cluster=CLUSTER), cluster.Heartbeat())
        )
        peer = DamagingPeer("tiermesh.Shard", hello, beat)
        async with peer.serving():
            timeouts = Timeouts.from_heartbeat(5.0)
            shards = PlaneGroup(make_links([peer.address], timeouts), timeouts.beat)
            events = GroupEvents(shards)
            running = asyncio.ensure_future(shards.run())
            await events.wait_for_line("lost shard 0 of 1", "Attend: message 2, of ")
            await peer.again.wait()
            assert peer.heard[0] == 1, "Hello alone, without waiting for a heartbeat"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
