"""The daemons of a launch on their hosts: start them in order, watch them, stop them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cli.launch.agent.link import AgentLink
from cli.launch.agent.protocol import (
    Detach,
    Detached,
    Ended,
    JobSeen,
    Ready,
    Start,
    Stop,
    Stopped,
    WatchJob,
    WriteFile,
)
from cli.launch.command_line import KEY_FILE
from cli.launch.sites import close_all
from services.errors import Failed, TiermeshError
from services.runtime.launcher import READY_SECONDS
from services.tasks import describe_error, start_task
from services.timeouts import SAVE_SECONDS, STANDARD_TIMEOUTS

STOP_SECONDS = STANDARD_TIMEOUTS.kill + SAVE_SECONDS + 10.0
"""Longest wait for the daemons of one role to stop, in which an agent kills those that don't."""
START_ORDER = ("optimizer", "aggregator", "worker", "web")
"""Roles in the order of their start: each dials those before it."""


@dataclass(frozen=True)
class Member:
    """A daemon of the cluster.

    Attributes:
        rank: its rank.
        role: worker, aggregator, optimizer or web.
        name: daemon's name.
        site: name of its host.
    """

    rank: int
    role: str
    name: str
    site: str


class Cluster:
    """Async context manager of the daemons of a launch, which stops them at its end unless they are detached.

    Args:
        links: connections to the agents, by the host's name.
        members: daemons, started or to be started.
        lost: why there is no connection to the other hosts.
    """

    def __init__(
        self,
        links: Mapping[str, AgentLink],
        members: Iterable[Member],
        lost: Mapping[str, TiermeshError] = MappingProxyType({}),
    ) -> None:
        self._links = dict(links)
        self._members = {member.rank: member for member in members}
        self._ready: set[int] = set()
        self._ended: dict[int, Ended] = {}
        self._lost = dict(lost)
        self._waiting_stops: dict[str, int] = {}
        self._watching: set[str] = set()
        self._detached: set[str] = set()
        self._stays = False
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Cluster:
        self._tasks = [
            start_task(self._read(name, link), f"host {name}") for name, link in self._links.items()
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._end())

    # ---- start ----

    async def start(self, starts: Collection[tuple[Start, Mapping[str, str]]]) -> None:
        """Start daemons and wait until they serve.

        Args:
            starts: daemons, with the text files that each needs by path.

        Raises:
            TiermeshError: a daemon ended or is not ready in time, or a host is lost.
        """
        for start, files in starts:
            link = self._links[self._members[start.rank].site]
            _send_files(link, files)
            link.send(start)
        ranks = {start.rank for start, _ in starts}
        try:
            await asyncio.wait_for(
                self._until(lambda: self._raise_if_gone() or ranks <= self._ready), READY_SECONDS
            )
        except asyncio.TimeoutError:
            late = self._members[min(ranks - self._ready)]
            raise Failed(
                f"host {late.site}: rank {late.rank}, {late.role}: no sign of it after {READY_SECONDS:g} s; see its log"
            ) from None

    # ---- watch ----

    async def watch(self, say: Callable[[str], None]) -> None:
        """Wait until the cluster can't go on. A worker may end as long as another one lives, and the HTTP API.

        Args:
            say: called with one line for each of these that ends.

        Raises:
            TiermeshError: aggregator, optimizer or the last worker ended, or its host is lost.
        """
        told: set[int] = set()
        while True:
            gone = self._gone()
            workers = [member for member in self._members.values() if member.role == "worker"]
            for rank in sorted(gone.keys() - told):
                rest = "without the HTTP API"
                if self._members[rank].role != "web":
                    if self._members[rank].role != "worker" or gone.keys() >= {each.rank for each in workers}:
                        raise gone[rank]
                    rest = "with the other workers"
                told.add(rank)
                say(f"{gone[rank]}; the job continues {rest}")
            async with self._changed:
                await self._changed.wait_for(lambda: self._gone().keys() > told)

    def _gone(self) -> dict[int, TiermeshError]:
        """Return why each daemon that is gone is, by rank."""
        gone: dict[int, TiermeshError] = {}
        for rank, member in self._members.items():
            if rank in self._ended:
                text = f"host {member.site}: rank {rank}, {member.role}: {self._ended[rank].text}"
                gone[rank] = Failed(text)
            elif member.site in self._lost:
                gone[rank] = self._lost[member.site]
        return gone

    def _raise_if_gone(self) -> bool:
        for error in self._gone().values():
            raise error
        return False

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _read(self, name: str, link: AgentLink) -> None:
        while True:
            try:
                message = await link.receive()
            except Exception as error:  # so that those who wait for a message of this host are told
                lost = (
                    error
                    if isinstance(error, TiermeshError)
                    else Failed(f"host {name}: {describe_error(error)}")
                )
                async with self._changed:
                    self._lost[name] = lost
                    self._changed.notify_all()
                return
            async with self._changed:
                match message:
                    case Ready():
                        self._ready.add(message.rank)
                    case Ended():
                        self._ended[message.rank] = message
                    case Stopped():
                        self._waiting_stops[name] = self._waiting_stops.get(name, 0) - 1
                    case JobSeen():
                        self._watching.add(name)
                    case Detached():
                        self._detached.add(name)
                self._changed.notify_all()
            if isinstance(message, Detached):
                return  # the agent closes the connection

    # ---- end ----

    async def detach(self, requests: Mapping[str, tuple[WatchJob, Mapping[str, str]]]) -> None:
        """Let the daemons go on without this process.

        Args:
            requests: job to watch for each host's agent, with the text files that it needs by path.

        Raises:
            TiermeshError: a host is lost or can't reach the aggregator; then all daemons stop.
        """
        for name, (request, files) in requests.items():
            _send_files(self._links[name], files)
            self._links[name].send(request)
        await self._until(lambda: self._raise_if_gone() or self._watching >= self._links.keys())
        for link in self._links.values():  # from here on none can fail, so that all detach or none
            link.send(Detach())
        await self._until(lambda: self._raise_if_gone() or self._detached >= self._links.keys())
        self._stays = True

    def leave(self) -> None:
        """Leave daemons that are detached already as they are at the end of the context."""
        self._stays = True

    async def _end(self) -> None:
        try:
            if not self._stays:
                await self._stop()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await close_all(self._links.values())

    async def _stop(self) -> None:
        """Stop the daemons role by role. Hosts that are lost stop theirs by themselves."""
        for role in reversed(START_ORDER):
            ranks: dict[str, list[int]] = {}
            for member in self._members.values():
                if member.role == role and member.site not in self._lost:
                    ranks.setdefault(member.site, []).append(member.rank)
            for site, ended in ranks.items():
                self._waiting_stops[site] = self._waiting_stops.get(site, 0) + 1
                self._links[site].send(Stop(tuple(ended)))
            with contextlib.suppress(
                asyncio.TimeoutError
            ):  # closing the connection makes the agent kill them
                await asyncio.wait_for(self._until(functools.partial(self._has_stopped, ranks)), STOP_SECONDS)

    def _has_stopped(self, sites: Iterable[str]) -> bool:
        return all(site in self._lost or not self._waiting_stops.get(site, 0) for site in sites)


def _send_files(link: AgentLink, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        link.send(WriteFile(path, text, secret=path.endswith(KEY_FILE)))
