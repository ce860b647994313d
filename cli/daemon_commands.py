"""`tiermesh worker`, `aggregator`, `optimizer`: one role daemon in the foreground."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import (
    AGGREGATOR_ADDRESS,
    ANY_PORT,
    OPTIMIZER_ADDRESS,
    allow_models_option,
    daemon_options,
    option,
    path_option,
)
from services.errors import Refused
from services.timeouts import STANDARD_HEARTBEAT_SECONDS

if TYPE_CHECKING:
    from worker.step_interface import StepFactory


def _read_timeouts(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    """NAME=SECONDS, several times (Refused)."""
    timeouts = {}
    for text in given:
        name, _is, seconds = text.partition("=")
        try:
            timeouts[name] = float(seconds)
        except ValueError:
            raise Refused(f"--timeout {text}: expected NAME=SECONDS, for example stall=900") from None
    return timeouts


def make_worker_command(
    make_step: StepFactory | None = None, clock: Callable[[], float] = time.perf_counter
) -> click.Command:
    """Return the command `tiermesh worker`; tests and benchmarks give it a step and a clock of their own.

    Args:
        make_step: makes the training step of a job; None for `training.step.TrainingStep`.
        clock: monotonic time in seconds, by which computing is measured.
    """

    @click.command("worker")
    @option(
        "--aggregator",
        default=AGGREGATOR_ADDRESS,
        metavar="HOST:PORT,...",
        help="The aggregator to work for, and its standbys if it has any.",
    )
    @path_option("--data", "data_dir", help="Where corpora are that aren't at the path which a job names.")
    @allow_models_option
    @daemon_options(ANY_PORT)
    def command(
        *, aggregator: str, data_dir: Path | None, allowed_models: tuple[str, ...], daemon: dict[str, Any]
    ) -> int:
        """Run a worker: it computes gradients on this host's mesh."""
        from worker.daemon import WorkerOptions, run

        options = WorkerOptions(
            aggregator=aggregator, data_dir=data_dir, allowed_models=allowed_models, **daemon
        )
        return run(options, make_step=make_step, clock=clock)

    return command


worker = make_worker_command()


@click.command()
@option(
    "--optimizer", metavar="HOST:PORT", help="The optimizer (3-tier); without it, it runs inside (2-tier)."
)
@option(
    "--shards",
    default="",
    metavar="HOST:PORT,...",
    help="Processes started with --shard that tensors are split over (2-tier); without them, they are in this one.",
)
@option("--shard", is_flag=True, help="Be a shard: hold the tensors that an aggregator with --shards splits.")
@option("--standby", is_flag=True, help="Lead only while no other aggregator on this state dir does.")
@path_option("--state-dir", default=Path(".tiermesh/aggregator"), help="Queue and, in 2-tier, checkpoints.")
@option(
    "--heartbeat-seconds",
    type=float,
    default=STANDARD_HEARTBEAT_SECONDS,
    help="A worker that is silent for 2.5 of these is lost.",
)
@option(
    "--timeout",
    "timeouts",
    multiple=True,
    metavar="NAME=SECONDS",
    callback=_read_timeouts,
    help="A timeout set by hand (docs/operations.md has them all); may be given several times.",
)
@path_option("--record", help="Record what the core sees and does here, for replay.")
@daemon_options(AGGREGATOR_ADDRESS)
def aggregator(
    *,
    optimizer: str | None,
    shards: str,
    shard: bool,
    standby: bool,
    state_dir: Path,
    heartbeat_seconds: float,
    timeouts: dict[str, float],
    record: Path | None,
    daemon: dict[str, Any],
) -> int:
    """Run an aggregator: jobs are submitted to it, workers attend it."""
    from aggregator.daemon import AggregatorOptions, run

    return run(
        AggregatorOptions(
            state_dir=state_dir,
            optimizer=optimizer,
            record=record,
            heartbeat_seconds=heartbeat_seconds,
            timeout_overrides=timeouts,
            shards=tuple(address.strip() for address in shards.split(",") if address.strip()),
            shard=shard,
            standby=standby,
            **daemon,
        )
    )


@click.command()
@path_option("--state-dir", default=Path(".tiermesh/optimizer"), help="Checkpoints.")
@path_option("--record", help="Record what the core sees and does here, for replay.")
@daemon_options(OPTIMIZER_ADDRESS)
def optimizer(*, state_dir: Path, record: Path | None, daemon: dict[str, Any]) -> int:
    """Run an optimizer: it holds the master weights and writes checkpoints."""
    from optimizer.daemon import OptimizerOptions, run

    return run(OptimizerOptions(state_dir=state_dir, record=record, **daemon))
