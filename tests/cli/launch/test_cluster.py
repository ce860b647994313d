"""The daemons of a launch: which death ends a run, in which order roles stop, and what a lost host does."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from cli.launch.agent.link import AgentLink
from cli.launch.agent.protocol import (
    AgentMessage,
    Detach,
    Detached,
    Ended,
    JobSeen,
    LauncherMessage,
    Ready,
    Start,
    Stop,
    Stopped,
    WatchJob,
)
from cli.launch.cluster import Cluster, Member
from services.errors import Failed, TiermeshError

MEMBERS = (
    Member(0, "worker", "w0", "a"),
    Member(1, "worker", "w1", "b"),
    Member(2, "aggregator", "agg", "c"),
    Member(3, "optimizer", "opt", "c"),
)
WEB = Member(4, "web", "web", "c")


class FakeLink:
    """Link to an agent that answers each Stop, and gives the messages that a test puts into it."""

    def __init__(self, host: str, log: list[tuple[str, tuple[int, ...]]], detached: list[str]) -> None:
        self.host = host
        self._detached = detached
        self.messages: asyncio.Queue[AgentMessage | TiermeshError] = asyncio.Queue()
        self.closed = False
        self._log = log

    def send(self, message: LauncherMessage) -> None:
        if isinstance(message, Stop):
            self._log.append((self.host, message.ranks))
            self.messages.put_nowait(Stopped())
        elif isinstance(message, Detach):
            self._detached.append(self.host)
            self.messages.put_nowait(Detached())
            self.messages.put_nowait(Failed(f"host {self.host}: the connection is closed"))
        elif isinstance(message, Start):
            self.messages.put_nowait(Ready(message.rank))

    async def receive(self) -> AgentMessage:
        message = await self.messages.get()
        if isinstance(message, TiermeshError):
            raise message
        return message

    async def close(self) -> None:
        self.closed = True


class FakeHosts:
    """A cluster of three hosts whose agents are fakes."""

    def __init__(self) -> None:
        self.stops: list[tuple[str, tuple[int, ...]]] = []
        self.detached: list[str] = []
        self.links = {name: FakeLink(name, self.stops, self.detached) for name in "abc"}
        self.said: list[str] = []

    def cluster(self, *more: Member) -> Cluster:
        links = {name: cast(AgentLink, link) for name, link in self.links.items()}
        return Cluster(links, (*MEMBERS, *more))

    def tell(self, host: str, message: AgentMessage | TiermeshError) -> None:
        self.links[host].messages.put_nowait(message)


def watch(
    *events: tuple[str, AgentMessage | TiermeshError], more: tuple[Member, ...] = ()
) -> tuple[FakeHosts, str]:
    """Watch a cluster in which events happen; return its hosts, and the error with which the watch ended."""

    async def run() -> tuple[FakeHosts, str]:
        hosts = FakeHosts()
        with pytest.raises(TiermeshError) as raised:
            async with hosts.cluster(*more) as cluster:
                watching = asyncio.ensure_future(cluster.watch(hosts.said.append))
                for event in events:
                    hosts.tell(*event)
                    for _ in range(20):  # no fake waits for anything, so this carries out all that follows
                        await asyncio.sleep(0)
                await asyncio.wait_for(watching, 10)
        assert all(link.closed for link in hosts.links.values())
        return hosts, str(raised.value)

    return asyncio.run(run())


def test_a_worker_may_end_and_the_last_one_ends_the_run() -> None:
    hosts, error = watch(("a", Ended(0, 1, "w0 ended")), ("b", Ended(1, -9, "w1 ended, killed by SIGKILL")))
    assert error == "host b: rank 1, worker: w1 ended, killed by SIGKILL"
    assert hosts.said == ["host a: rank 0, worker: w0 ended; the job continues with the other workers"]


def test_the_http_api_may_end_and_stops_first() -> None:
    hosts, error = watch(("c", Ended(4, 1, "web ended")), ("c", Ended(3, 1, "opt ended")), more=(WEB,))
    assert hosts.said == ["host c: rank 4, web: web ended; the job continues without the HTTP API"]
    assert error == "host c: rank 3, optimizer: opt ended"
    assert hosts.stops[:2] == [("c", (4,)), ("a", (0,))]


def test_a_lost_host_with_one_of_several_workers_does_not_end_the_run() -> None:
    hosts, error = watch(("a", Failed("host a: no sign of life")), ("c", Ended(3, 1, "opt ended")))
    assert hosts.said == ["host a: no sign of life; the job continues with the other workers"]
    assert error == "host c: rank 3, optimizer: opt ended"
    assert hosts.stops[0] == ("b", (1,))


def test_a_lost_host_counts_as_the_death_of_its_daemons() -> None:
    hosts, error = watch(("c", Failed("host c: ssh lost the connection")))
    assert error == "host c: ssh lost the connection"
    assert hosts.stops == [("a", (0,)), ("b", (1,))]  # the agent of c stops its daemons by itself


def test_roles_stop_one_after_the_other_workers_first() -> None:
    hosts, _ = watch(("c", Ended(2, 0, "agg ended")))
    assert hosts.stops == [("a", (0,)), ("b", (1,)), ("c", (2,)), ("c", (3,))]


def test_a_daemon_that_ends_at_its_start_is_named() -> None:
    async def run() -> None:
        hosts = FakeHosts()
        start = Start(0, "worker", "w0", "/f", "/f/ready", ("tiermesh",), {}, ())
        async with hosts.cluster() as cluster:
            await cluster.start([(start, {})])
            hosts.tell("b", Ended(1, 2, "w1 ended, exit code 2: the mesh is in use"))
            with pytest.raises(Failed, match=r"host b: rank 1, worker: .* the mesh is in use"):
                await cluster.start([(Start(1, "worker", "w1", "/f", "/f/ready", ("tiermesh",), {}, ()), {})])

    asyncio.run(run())


def test_no_host_detaches_unless_all_can_watch_over_the_job() -> None:
    async def run() -> None:
        hosts = FakeHosts()
        watch = {name: (WatchJob("job", "c:7070", "opt", ()), {}) for name in "abc"}
        with pytest.raises(Failed, match="host b: the aggregator can't be reached"):
            async with hosts.cluster() as cluster:
                detaching = asyncio.ensure_future(cluster.detach(watch))
                hosts.tell("a", JobSeen())
                hosts.tell("c", JobSeen())
                hosts.tell("b", Failed("host b: the aggregator can't be reached"))
                await asyncio.wait_for(detaching, 10)
        assert hosts.detached == []
        assert hosts.stops == [("a", (0,)), ("c", (2,)), ("c", (3,))]  # b stops its own, by itself

    asyncio.run(run())


def test_hosts_detach_once_all_watch_over_the_job() -> None:
    async def run() -> None:
        hosts = FakeHosts()
        async with hosts.cluster() as cluster:
            for name in "abc":
                hosts.tell(name, JobSeen())
            await asyncio.wait_for(
                cluster.detach({name: (WatchJob("job", "c:7070", "opt", ()), {}) for name in "abc"}), 10
            )
        assert hosts.detached == ["a", "b", "c"]
        assert hosts.stops == []

    asyncio.run(run())
