"""`tiermesh launch --dry-run`: print the command of every rank, and start nothing."""

from __future__ import annotations

from typing import Any

from cli.launch.command_line import DaemonCommand, Place, daemon_commands
from cli.launch.plan import LaunchPlan
from cli.launch.prepare import LaunchOptions, prepare
from cli.output import Output
from services.printable import counted


def dry_run(options: LaunchOptions, output: Output) -> None:
    """Print the plan of a launch and the commands of its daemons, in the order in which they start.

    Raises:
        Refused: the configuration or the job is wrong, or the two don't fit each other.
    """
    plan, _ = prepare(options, output)
    program = options.remote_program
    places = {
        rank.number: Place(program, str(options.state_dir / rank.name), rank.host or "127.0.0.1")
        for rank in plan.ranks
    }
    commands = daemon_commands(plan, places, options.ports)
    output.say(describe_plan(plan))
    for command in commands:
        rank = command.rank
        output.say(f"\n# rank {rank.number}, {rank.role}, on {rank.host or 'this machine'}")
        for path in command.files:
            output.say(f"# writes {path}: the descriptor of mesh {rank.mesh_id} alone")
        output.say(command.in_shell())
    output.result({"dry_run": True, "tiers": plan.tiers, "ranks": [_fields(command) for command in commands]})


def describe_plan(plan: LaunchPlan) -> str:
    """Return one line about the roles and hosts of a plan."""
    roles = [counted(len(plan.workers), "worker"), "an aggregator"]
    roles += ["an optimizer"] if plan.optimizer is not None else []
    where = "this machine" if plan.is_local else counted(len(plan.hosts), "host")
    ranks = counted(len(plan.ranks), "rank")
    return f"{ranks} on {where}: {', '.join(roles[:-1])} and {roles[-1]} ({plan.tiers} tiers)"


def _fields(command: DaemonCommand) -> dict[str, Any]:
    rank = command.rank
    return {
        "rank": rank.number,
        "role": rank.role,
        "host": rank.host,
        "name": rank.name,
        "mesh_id": rank.mesh_id,
        "arguments": list(command.arguments),
        "environment": dict(command.environment),
        "unset": list(command.unset),
        "files": dict(command.files),
    }
