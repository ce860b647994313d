"""`tiermesh launch --dry-run`: print every command of a launch, as a person could run them, and start nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.launch.command_line import DaemonCommand, Place, aggregator_address, daemon_commands
from cli.launch.memory import estimate_needs, find_shortage
from cli.launch.plan import LaunchPlan
from cli.launch.prepare import LaunchOptions, prepare
from cli.launch.sites import THIS_MACHINE, Site, plan_sites
from cli.output import Output
from services.printable import counted, format_bytes
from services.runtime.host_memory import read_host_memory

_RUN = "RUN"
"""Name of the run in printed paths; a real run gets one of its own."""
_END_OF_FILE = "END_OF_FILE"


def dry_run(options: LaunchOptions, output: Output) -> None:
    """Print the plan of a launch, and the commands of its daemons in the order in which they start.

    Raises:
        Refused: the configuration or the job is wrong, or the two don't fit each other.
    """
    plan, config = prepare(options, output)
    needs = estimate_needs(plan, config)
    sites = plan_sites(plan, options, _RUN)
    places = _places(plan, sites, options.remote_program)
    commands = daemon_commands(plan, places, options.ports)
    submit = [
        *options.remote_program,
        *("submit", options.config, *options.overrides, "--follow"),
        *("--aggregator", aggregator_address(plan, places, options.ports)),
    ]
    output.say(describe_plan(plan))
    if plan.beside and not plan.is_local:
        output.say(describe_beside(plan, {}))
    for need in needs:
        output.say(f"{need.host or THIS_MACHINE}: {need}")
        shortage = None if need.host else find_shortage(need, THIS_MACHINE, read_host_memory().total_bytes)
        if shortage is not None:
            output.warn(shortage.line)
    for line in (*_site_lines(sites), *_daemon_lines(commands, places), *_submit_lines(submit, sites)):
        output.say(line)
    output.result(
        {
            "dry_run": True,
            "tiers": plan.tiers,
            "memory": [{"host": need.host, "needed_bytes": need.total_bytes} for need in needs],
            "hosts": [{"host": site.host, "agent": site.agent_command()} for site in sites if site.host],
            "ranks": [_fields(command) for command in commands],
            "submit": submit,
        }
    )


def describe_plan(plan: LaunchPlan) -> str:
    """Return one line about the roles and hosts of a plan."""
    roles = [counted(len(plan.workers), "worker"), "an aggregator"]
    roles += ["an optimizer"] if plan.optimizer is not None else []
    roles += ["the HTTP API"] if plan.web is not None else []
    where = "this machine" if plan.is_local else counted(len(plan.hosts), "host")
    ranks = counted(len(plan.ranks), "rank")
    return f"{ranks} on {where}: {', '.join(roles[:-1])} and {roles[-1]} ({plan.tiers} tiers)"


def describe_beside(plan: LaunchPlan, memory_bytes: Mapping[str, int]) -> str:
    """Return one line about the ranks that run beside a worker: on which host, and why there.

    Args:
        plan: plan with such ranks, on several hosts.
        memory_bytes: memory of each host, by its name; empty if they were not asked.
    """
    host = plan.beside[0].host
    names = ["the HTTP API" if rank.role == "web" else f"the {rank.role}" for rank in plan.beside]
    roles = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    verb = "run" if len(plan.beside) > 1 else "runs"
    if host is None or host not in memory_bytes:
        return (
            f"{roles} {verb} beside a worker: a launch takes the host with most memory, and this text {host}"
        )
    return (
        f"{roles} {verb} beside a worker on {host}, which has most memory: {format_bytes(memory_bytes[host])}"
    )


def _places(plan: LaunchPlan, sites: Sequence[Site], program: tuple[str, ...]) -> dict[int, Place]:
    """Return the place of each rank. Only this machine's home folder is known; other hosts' paths begin there."""
    by_host = {site.host: site for site in sites}
    places = {}
    for rank in plan.ranks:
        site = by_host[rank.host]
        folder = Path(site.folder) if rank.host is not None else Path.home() / site.folder
        places[rank.number] = Place(program, str(folder / rank.name), rank.host or "127.0.0.1")
    return places


def _site_lines(sites: Sequence[Site]) -> Iterator[str]:
    for site in sites:
        if site.host is not None:
            yield f"\n# agent on {site.host}: checks the host, and runs its daemons by the launcher's orders"
            yield shlex.join(site.agent_command())


def _daemon_lines(commands: Sequence[DaemonCommand], places: dict[int, Place]) -> Iterator[str]:
    if any(command.rank.host is not None for command in commands):
        yield (
            "\n# Below: what the agents start, from the home folder. A launch makes certificates for its run "
            "(daemon.crt, daemon.key, authority.crt; with --web tokens.txt too); by hand, `tiermesh certs` and "
            "`tiermesh tokens` make some."
        )
    for command in commands:
        rank = command.rank
        yield f"\n# rank {rank.number}, {rank.role}, on {rank.host or 'this machine'}"
        yield shlex.join(["mkdir", "-p", places[rank.number].folder])
        for path, text in command.files.items():
            yield f"cat > {shlex.quote(path)} <<'{_END_OF_FILE}'\n{text.rstrip()}\n{_END_OF_FILE}"
        yield command.in_shell()


def _submit_lines(submit: Sequence[str], sites: Sequence[Site]) -> Iterator[str]:
    certificate = "" if sites[0].host is None else ", with a certificate of the run"
    yield f"\n# the job, once all have joined{certificate}"
    yield shlex.join(submit)


def _fields(command: DaemonCommand) -> dict[str, Any]:
    rank = command.rank
    return {
        "rank": rank.number,
        "role": rank.role,
        "host": rank.host,
        "name": rank.name,
        "beside": rank.beside,
        "mesh_id": rank.mesh_id,
        "arguments": list(command.arguments),
        "environment": dict(command.environment),
        "unset": list(command.unset),
        "files": dict(command.files),
    }
