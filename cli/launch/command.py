"""The command `tiermesh launch`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cli.options import json_option, option, path_option
from cli.output import Output
from services.errors import Refused

_SETTING = re.compile(r"[A-Za-z_][\w.]*=.*", re.ASCII | re.DOTALL)
_PORT = click.IntRange(1, 65535)


@click.command()
@click.argument("arguments", metavar="[FOLDER] [KEY=VALUE]...", nargs=-1)
@click.option(
    "--config", "-c", metavar="JOB.yaml", required=True, help="Training config, as tt-train's --config."
)
@option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting of the config, as KEY=VALUE after the folder does; repeatable.",
)
@option(
    "--hosts",
    metavar="FILE|HOST[:SLOTS],...",
    help="Hosts and their slots.  [default: hosts.txt of FOLDER, else this machine]",
)
@path_option(
    "--rank-bindings",
    "--rank-binding",
    "rank_bindings",
    help="Rank bindings, as tt-run has them.  [default: rank_bindings.yaml of FOLDER]",
)
@path_option(
    "--mgd",
    "--mesh-graph-descriptor",
    "-m",
    "mgd",
    help="Mesh graph descriptor.  [default: that of the rank bindings, else mgd.textproto of FOLDER]",
)
@path_option("--rankfile", help="OpenMPI's rankfile with the host of each rank, in place of --hosts.")
@path_option(
    "--state-dir",
    default=Path(".tiermesh/launch"),
    help="Folder of the launch on each host; a relative one lies in the home folder.",
)
@option("--aggregator-port", type=_PORT, default=7070, help="Port of the aggregator.")
@option("--optimizer-port", type=_PORT, default=7071, help="Port of the optimizer.")
@option("--dry-run", is_flag=True, help="Print the command of every rank, and start nothing.")
@json_option
def launch(
    *,
    arguments: tuple[str, ...],
    config: str,
    overrides: tuple[str, ...],
    hosts: str | None,
    rank_bindings: Path | None,
    mgd: Path | None,
    rankfile: Path | None,
    state_dir: Path,
    aggregator_port: int,
    optimizer_port: int,
    dry_run: bool,
    output: Output,
) -> None:
    """Start a cluster from a configuration folder of tt-train, and run a job on it."""
    from cli.launch.command_line import Ports
    from cli.launch.configuration import LaunchFiles
    from cli.launch.dry_run import dry_run as run
    from cli.launch.prepare import LaunchOptions

    folder, settings = _split_arguments(arguments)
    options = LaunchOptions(
        files=LaunchFiles(folder, hosts, rank_bindings, mgd, rankfile),
        config=config,
        overrides=(*overrides, *settings),
        state_dir=state_dir,
        ports=Ports(aggregator_port, optimizer_port),
    )
    if not dry_run:
        raise Refused("launch: daemons on other hosts are not started yet; add --dry-run to see the commands")
    run(options, output)


def _split_arguments(arguments: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the folder and the settings among the arguments; raise Refused for a second folder."""
    folders = [text for text in arguments if not _SETTING.fullmatch(text)]
    if len(folders) > 1:
        raise Refused(
            f"{folders[1][:80]!r}: given after the folder {folders[0][:80]!r}, expected a setting KEY=VALUE; correct "
            "it or remove it"
        )
    settings = tuple(text for text in arguments if _SETTING.fullmatch(text))
    return Path(folders[0]) if folders else None, settings
