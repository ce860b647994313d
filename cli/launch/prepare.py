"""What a launch does before it touches another host: read the job and the configuration, and make the plan."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cli.jobs import read_job
from cli.launch.command_line import Ports
from cli.launch.configuration import LaunchFiles, read_configuration
from cli.launch.openssh import OpenSSH
from cli.launch.plan import LaunchPlan, plan_launch
from cli.output import Output
from mesh.backend import has_device
from services.config.job import JobConfig
from services.config.paths import find_include
from services.errors import Refused


@dataclass(frozen=True)
class LaunchOptions:
    """Options of `tiermesh launch`.

    Attributes:
        files: configuration folder, or files in its place.
        config: training config, as tt-train's `--config`.
        overrides: `key=value` settings that override it.
        state_dir: folder of the launch on each host; a relative one lies in the home folder there.
        ports: ports of aggregator, optimizer and HTTP API.
        remote: path of Tiermesh on the other hosts; None for that of this one.
        ssh: how hosts are reached.
        detach: whether the command ends once the job is submitted, and the run goes on.
        workers: number of workers; None for the job's `num_workers`.
        web: whether to serve the HTTP API too.
    """

    files: LaunchFiles
    config: str
    overrides: tuple[str, ...]
    state_dir: Path
    ports: Ports
    remote: str | None = None
    ssh: OpenSSH = field(default_factory=OpenSSH)
    detach: bool = False
    workers: int | None = None
    web: bool = False

    @property
    def remote_program(self) -> tuple[str, ...]:
        """Command that starts Tiermesh on other hosts: the same path as here, unless another one is given."""
        return (self.remote or str(Path(sys.executable).with_name("tiermesh")),)


def prepare(options: LaunchOptions, output: Output) -> tuple[LaunchPlan, JobConfig]:
    """Return the plan of a launch, and the job that it will submit. Notices about the job are printed.

    Raises:
        Refused: the configuration or the job is wrong, or the two don't fit each other.
    """
    configuration = read_configuration(options.files, os.environ, Path.cwd())
    config = Path(options.config)
    if not config.exists():
        config = find_include(options.config, field="--config", folder=Path.cwd(), kind="training_configs")
    job = read_job(config, options.overrides, output).config
    plan = plan_launch(
        configuration,
        job.num_workers,
        job.device,
        os.environ,
        workers=options.workers,
        stages=job.stages,
        web=options.web,
        local_chips=has_device(),
    )
    _check_ports(plan, options.ports)
    return plan, job


def _check_ports(plan: LaunchPlan, ports: Ports) -> None:
    """Check that no two daemons need one port of one host (Refused)."""
    used = {ports.aggregator: "the port of the aggregator"}
    needs = []
    if plan.optimizer is not None and plan.optimizer.host == plan.aggregator.host:
        needs.append(("--optimizer-port", ports.optimizer))
    if plan.web is not None:
        needs += [("--web-port", ports.web), *([] if plan.is_local else [("--people-port", ports.people)])]
    for option, port in needs:
        if port in used:
            raise Refused(f"{option} {port}: also {used[port]}, on the same host; give another one")
        used[port] = option
