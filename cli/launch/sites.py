"""The hosts of a launch: an agent on each, and what is checked of all of them before anything is started."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cli.launch.agent.link import AgentLink
from cli.launch.agent.protocol import Probe, Probed
from cli.launch.memory import HostNeed, find_shortage
from cli.launch.openssh import OpenSSH, explain_end, read_address
from cli.launch.plan import LaunchPlan
from cli.launch.preflight import check_facts, check_probe
from cli.launch.prepare import LaunchOptions
from cli.output import Output
from services.errors import Refused, TiermeshError

THIS_MACHINE = "this machine"
LOCAL_PROGRAM = (sys.executable, "-m", "cli.main")
_QUERY_SECONDS = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Site:
    """A host of a launch, and how its agent is started.

    Attributes:
        host: host as hosts.txt names it; None for this machine, without OpenSSH.
        folder: the run's folder there; a relative one lies in the home folder.
        program: command that starts Tiermesh there.
        ssh: how the host is reached.
    """

    host: str | None
    folder: str
    program: tuple[str, ...]
    ssh: OpenSSH

    @property
    def name(self) -> str:
        """Name in errors."""
        return self.host or THIS_MACHINE

    async def connect(self, *, attach: bool = False) -> AgentLink:
        """Start the agent, or connect to one that is detached.

        Raises:
            TiermeshError: the host can't be reached, or has no such Tiermesh or run.
        """
        remote = self._agent(attach=attach)

        def explain(code: int, errors: Sequence[str]) -> TiermeshError:
            return explain_end(self.name, code, errors, remote)

        return await AgentLink.open(self.name, self.agent_command(attach=attach), explain)

    def agent_command(self, *, attach: bool = False) -> list[str]:
        """Return the command that starts the agent from this machine, or connects to one that is detached."""
        remote = self._agent(attach=attach)
        return remote if self.host is None else self.ssh.command(self.host, remote)

    def _agent(self, *, attach: bool) -> list[str]:
        return [*self.program, "launch-agent", "--folder", self.folder, *(["--attach"] if attach else [])]

    async def find_address(self) -> str:
        """Return the address by which others reach the host: HostName of ssh_config, else the name itself."""
        if self.host is None:
            return "127.0.0.1"
        query = await asyncio.create_subprocess_exec(
            *self.ssh.query(self.host),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            answer, _ = await asyncio.wait_for(query.communicate(), _QUERY_SECONDS)
        except asyncio.TimeoutError:
            query.kill()
            return self.host
        return read_address(answer.decode(errors="replace"), self.host)


def plan_sites(plan: LaunchPlan, options: LaunchOptions, name: str) -> tuple[Site, ...]:
    """Return the hosts of a plan.

    Args:
        plan: ranks and their hosts.
        options: how hosts are reached, and the launch's folder there.
        name: name of the run.
    """
    folder = options.state_dir / name
    if plan.is_local:
        return (Site(None, str(folder / "local"), LOCAL_PROGRAM, options.ssh),)
    # A folder of each host's own, because hosts may share the home folder.
    return tuple(
        Site(host, str(folder / host.replace(":", ".")), options.remote_program, options.ssh)
        for host in plan.hosts
    )


async def connect_all(sites: Collection[Site], output: Output) -> dict[str, AgentLink]:
    """Return the connections to the agents of all hosts, by the host's name; none stays open if one fails.

    Raises:
        TiermeshError: a host can't be used.
    """
    opened: list[AgentLink] = []

    async def connect(site: Site) -> None:
        opened.append(await site.connect())

    try:
        await for_all(sites, connect, output)
    except BaseException:
        await close_all(opened)
        raise
    by_name = {link.host: link for link in opened}
    return {site.name: by_name[site.name] for site in sites}


async def reach_all(sites: Sequence[Site]) -> tuple[dict[str, AgentLink], dict[str, TiermeshError]]:
    """Return the connections to the agents of a detached run, and why the others lack, both by the host's name."""
    answers = await asyncio.gather(*(site.connect(attach=True) for site in sites), return_exceptions=True)
    links, errors = {}, {}
    for site, answer in zip(sites, answers, strict=True):
        if isinstance(answer, AgentLink):
            links[site.name] = answer
        elif isinstance(answer, TiermeshError):
            errors[site.name] = answer
        else:
            raise answer
    return links, errors


async def check_all(
    links: Iterable[AgentLink],
    ports: Mapping[str, Sequence[int]],
    needs: Sequence[HostNeed],
    output: Output,
) -> None:
    """Check version, memory, disk, ports and clock of all hosts. A host that may have too little memory is named.

    Args:
        links: connections to the agents.
        ports: ports that daemons will listen on, by the host's name.
        needs: memory that hosts need, as far as it is known.
        output: where notices go, and refusals if there are several.

    Raises:
        TiermeshError: a host can't be used.
    """

    by_host = {need.host or THIS_MACHINE: need for need in needs}

    async def check(link: AgentLink) -> None:
        refusal = check_facts(link.host, link.facts)
        need = by_host.get(link.host)
        shortage = need and find_shortage(need, link.host, link.facts.memory_bytes)
        if refusal is None and shortage:
            if shortage.is_certain:
                raise Refused(shortage.line)
            output.warn(shortage.line)
        if refusal is None:
            sent_seconds = time.time()
            probed = await link.ask(Probe(tuple(ports.get(link.host, ()))), Probed)
            refusal = check_probe(link.host, probed, sent_seconds, time.time())
        if refusal is not None:
            raise Refused(refusal.reason)

    await for_all(list(links), check, output)


async def close_all(links: Iterable[AgentLink]) -> None:
    """Close connections; agents that are not detached stop their daemons."""
    await asyncio.gather(*(link.close() for link in links))


async def for_all(
    items: Collection[Item], work: Callable[[Item], Awaitable[Result]], output: Output
) -> list[Result]:
    """Return the results of work on all items at once, in order.

    Raises:
        TiermeshError: the only one that was raised. Of several, each is printed, and the error counts them.
    """
    outcomes = await asyncio.gather(*(work(item) for item in items), return_exceptions=True)
    raise_errors([each for each in outcomes if isinstance(each, BaseException)], len(items), output)
    return [each for each in outcomes if not isinstance(each, BaseException)]


def raise_errors(errors: Sequence[BaseException], count: int, output: Output) -> None:
    """Raise the only error of work on several hosts. Of several, print each, and raise one that counts them.

    Args:
        errors: what the work on some hosts raised; may be empty.
        count: number of hosts.
        output: where the errors go if there are several.
    """
    for error in errors:
        if len(errors) == 1 or not isinstance(error, TiermeshError):
            raise error
    if errors:
        for error in errors:
            output.warn(str(error))
        raise type(errors[0])(f"{len(errors)} of {count} hosts can't be used; see the lines above")
