"""The command `tiermesh launch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click

from cli.launch.hosts_file import MOST_RANKS
from cli.options import WholeNumber, json_option, option, path_option
from cli.output import Output
from services.errors import Refused

_SETTING = re.compile(r"[A-Za-z_][\w.]*=.*", re.ASCII | re.DOTALL)
_PORT = WholeNumber(1, 65535)


@click.command()
@click.argument("arguments", metavar="[FOLDER] [KEY=VALUE]...", nargs=-1)
@click.option("--config", "-c", metavar="JOB.yaml", help="Training config, as tt-train's --config.")
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
@option(
    "--workers",
    type=WholeNumber(1, MOST_RANKS),
    help="Workers, at most one for each rank; with all ranks, aggregator and optimizer run beside one of them.  "
    "[default: num_workers of the job]",
)
@option("--aggregator-port", type=_PORT, default=7070, help="Port of the aggregator.")
@option("--optimizer-port", type=_PORT, default=7071, help="Port of the optimizer.")
@option("--web", is_flag=True, help="Serve the page and the HTTP API too, on the host of the aggregator.")
@option("--web-port", type=_PORT, default=7080, help="Port of the HTTP API.")
@option(
    "--people-port", type=_PORT, default=7079, help="Port of the aggregator for the HTTP API, on loopback."
)
@option("--remote", metavar="PATH", help="Tiermesh on the other hosts.  [default: the path of this one]")
@path_option("--ssh-config", help="Configuration of OpenSSH in place of ~/.ssh/config.")
@option(
    "--ssh-option",
    "ssh_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of OpenSSH that wins over its configuration; repeatable.",
)
@option("--detach", is_flag=True, help="Submit the job, print the run's name and end; the run goes on.")
@click.option("--attach", "attach_to", metavar="RUN", help="Follow the job of a detached run to its end.")
@click.option("--stop", "stop_run", metavar="RUN", help="Stop a detached run.")
@option("--dry-run", is_flag=True, help="Print every command, and start nothing.")
@json_option
def launch(
    *,
    arguments: tuple[str, ...],
    config: str | None,
    overrides: tuple[str, ...],
    hosts: str | None,
    rank_bindings: Path | None,
    mgd: Path | None,
    rankfile: Path | None,
    state_dir: Path,
    workers: int | None,
    aggregator_port: int,
    optimizer_port: int,
    web: bool,
    web_port: int,
    people_port: int,
    remote: str | None,
    ssh_config: Path | None,
    ssh_options: tuple[str, ...],
    detach: bool,
    attach_to: str | None,
    stop_run: str | None,
    dry_run: bool,
    output: Output,
) -> None:
    """Start a cluster from a configuration folder of tt-train, and run a job on it."""
    _check_alternatives({"--attach": attach_to, "--stop": stop_run, "--config": config})
    from cli.launch.command_line import Ports
    from cli.launch.configuration import LaunchFiles
    from cli.launch.dry_run import dry_run as print_commands
    from cli.launch.openssh import OpenSSH
    from cli.launch.prepare import LaunchOptions
    from cli.launch.run import attach, stop
    from cli.launch.run import launch as run

    if attach_to is not None:
        attach(state_dir, attach_to, output)
        return
    if stop_run is not None:
        stop(state_dir, stop_run, output)
        return
    assert config is not None
    folder, settings = _split_arguments(arguments)
    options = LaunchOptions(
        files=LaunchFiles(folder, hosts, rank_bindings, mgd, rankfile),
        config=config,
        overrides=(*overrides, *settings),
        state_dir=state_dir,
        ports=Ports(aggregator_port, optimizer_port, web_port, people_port),
        remote=remote,
        ssh=OpenSSH(config=ssh_config, options=ssh_options),
        detach=detach,
        workers=workers,
        web=web,
    )
    if dry_run:
        print_commands(options, output)
    else:
        run(options, output)


def _check_alternatives(values: Mapping[str, str | None]) -> None:
    """Check that exactly one of several options is given (Refused)."""
    given = [flag for flag, value in values.items() if value is not None]
    if not given:
        raise Refused("--config: missing; give the training config, or --attach RUN or --stop RUN")
    if len(given) > 1:
        raise Refused(f"{' and '.join(given)}: given together, expected one of them; remove the others")


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
