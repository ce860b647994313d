"""`tiermesh local` and `chaos`, which run a job on a cluster of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.job_commands import job_config
from cli.options import (
    LOG_LEVELS,
    WEB_ADDRESS,
    FiniteRange,
    WholeNumber,
    address_option,
    allow_models_option,
    code_option,
    option,
    output_options,
    path_option,
    timeline_options,
)
from cli.output import Output
from services.errors import Refused
from services.printable import counted

if TYPE_CHECKING:
    from services.instrumentation.timeline import TimelineOptions


_workers_option = option(
    "--workers", type=WholeNumber(min=1, max=64), default=2, help="Number of worker daemons."
)
_log_level_option = option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Lowest level that the daemons log."
)


@click.command()
@job_config
@_workers_option
@option(
    "--tiers",
    type=click.Choice(["2", "3"]),
    show_default="3; 2 with --shards",
    help="3 runs the optimizer as a daemon of its own, 2 inside the aggregator.",
)
@option(
    "--shards",
    type=WholeNumber(min=0, max=64),
    default=0,
    help="Number of shard processes that tensors are split over (2 tiers only); 0 for none.",
)
@path_option("--state-dir", default=Path(".tiermesh/local"), help="Folder for queue, checkpoints and logs.")
@option(
    "--resume",
    is_flag=True,
    help="Continue the unfinished job of --state-dir with the config it was submitted with.",
)
@option(
    "--sample-tokens",
    type=WholeNumber(min=0),
    default=200,
    help="Number of tokens of sample text to generate at the end; 0 for none.",
)
@option("--supervise", is_flag=True, help="Restart daemons that die, as systemd would.")
@option("--web", is_flag=True, help="Serve the page and the HTTP API too, while the command runs.")
@address_option(
    "--web-listen", default=WEB_ADDRESS, help="Address of the HTTP API; port 0 takes any free one."
)
@_log_level_option
@allow_models_option
@code_option
@timeline_options
@output_options
def local(
    *,
    path: Path,
    overrides: tuple[str, ...],
    workers: int,
    tiers: str | None,
    shards: int,
    state_dir: Path,
    resume: bool,
    sample_tokens: int,
    supervise: bool,
    web: bool,
    web_listen: str,
    log_level: str,
    allowed_models: tuple[str, ...],
    code: Path | None,
    timeline: TimelineOptions | None,
    output: Output,
) -> None:
    """Start a cluster on this machine and run a job on it to its end."""
    if shards and tiers == "3":
        raise Refused(
            f"--shards {shards} and --tiers 3: given together, but shards need 2 tiers; give --tiers 2"
        )
    tier_count = int(tiers or (2 if shards else 3))
    what = f"{tier_count} tiers with {counted(workers, 'worker')}"
    output.announce(f"starting {what} on this machine for {path}, in {state_dir}")
    from cli.local import LocalOptions, run

    run(
        LocalOptions(
            job=path,
            overrides=overrides,
            workers=workers,
            tiers=tier_count,
            shards=shards,
            state_dir=state_dir,
            resume=resume,
            sample_tokens=sample_tokens,
            log_level=log_level,
            allowed_models=allowed_models,
            code=code,
            timeline=timeline,
            supervise=supervise,
            web=web_listen if web else "",
        ),
        output,
    )


@click.command()
@job_config
@option("--seed", type=int, default=1, help="Seed of the faults; the same seed gives the same faults.")
@option(
    "--faults",
    type=WholeNumber(min=0, max=1000),
    default=6,
    help="Number of faults, spread over the job's steps.",
)
@_workers_option
@option(
    "--tiers",
    type=click.Choice(["2", "3"]),
    default="3",
    help="3 runs the optimizer as a daemon of its own, 2 inside the aggregator.",
)
@option(
    "--heartbeat-seconds",
    type=FiniteRange(min=0.1, max=10.0),
    default=1.0,
    help="Heartbeat of the aggregator; a fault lasts between half a heartbeat and five.",
)
@option(
    "--verify",
    is_flag=True,
    help="Run the job without faults first; fail unless both runs give the same bits.",
)
@path_option("--state-dir", default=Path(".tiermesh/chaos"), help="Folder for queue, checkpoints and logs.")
@_log_level_option
@output_options
def chaos(
    *,
    path: Path,
    overrides: tuple[str, ...],
    seed: int,
    faults: int,
    workers: int,
    tiers: str,
    heartbeat_seconds: float,
    verify: bool,
    state_dir: Path,
    log_level: str,
    output: Output,
) -> None:
    """Run a job while daemons are killed or frozen and links fail."""
    from cli.chaos.run import ChaosOptions, run

    run(
        ChaosOptions(
            job=path,
            overrides=overrides,
            seed=seed,
            faults=faults,
            workers=workers,
            tiers=int(tiers),
            heartbeat_seconds=heartbeat_seconds,
            verify=verify,
            state_dir=state_dir,
            log_level=log_level,
        ),
        output,
    )
