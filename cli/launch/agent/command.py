"""`tiermesh launch-agent`, which `tiermesh launch` starts on each host; people don't."""

from __future__ import annotations

import click


@click.command("launch-agent", hidden=True)
@click.option("--folder", required=True, help="Folder of the run; a relative path begins in the home folder.")
@click.option("--attach", is_flag=True, help="Connect to the agent of a detached run.")
def launch_agent(*, folder: str, attach: bool) -> int:
    """Run the daemons of this host for a launcher at the other end of standard input and output."""
    from cli.launch.agent.connections import relay, run_agent

    return relay(folder) if attach else run_agent(folder)
