"""The commands that call an aggregator about jobs: submit, continue, jobs, status, logs, ..."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import (
    Command,
    WholeNumber,
    client_options,
    code_option,
    option,
    path_option,
    step_range_options,
)
from cli.output import Output
from cli.retention_options import read_age_seconds, read_count, read_size_bytes

if TYPE_CHECKING:
    from services.jobs.target import AggregatorTarget


def job_config(command: Command) -> Command:
    """Add the arguments JOB.yaml and KEY=VALUE, and `--set`; the command gets `path` and `overrides`."""

    @click.argument("path", metavar="JOB.yaml", type=click.Path(path_type=Path))
    @click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
    @option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a setting of the config, as KEY=VALUE after the file does; repeatable.",
    )
    @functools.wraps(command)
    def with_overrides(
        *arguments: Any, overrides: tuple[str, ...], settings: tuple[str, ...], **rest: Any
    ) -> Any:
        return command(*arguments, overrides=(*overrides, *settings), **rest)

    return with_overrides


_follow_option = option("--follow", is_flag=True, help="Show the job's progress until it ends.")


def _read_by(read: Callable[[str, str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that reads the text of an option, if it is given."""
    return lambda _, parameter, text: None if text is None else read(parameter.opts[0], text)


@click.command()
@job_config
@option(
    "--from",
    "start",
    metavar="JOB[:STEP]",
    help="Start from a checkpoint of this job, which has ended.  [default: its newest]",
)
@code_option
@_follow_option
@option(
    "--no-upload",
    is_flag=True,
    help="Send no data to the aggregator: all workers have it, or the aggregator has it in its --data-dir.",
)
@path_option(
    "--tracking-dir",
    default=Path("tracking"),
    help="Folder of trackers that this command writes, with `tracking: {written_by: submitter}` and --follow.",
)
@client_options
def submit(
    *,
    path: Path,
    overrides: tuple[str, ...],
    start: str | None,
    code: Path | None,
    follow: bool,
    no_upload: bool,
    tracking_dir: Path,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Queue a job and print its id.

    What the aggregator lacks of the job's data is uploaded before.
    """
    import asyncio

    from cli.jobs import read_job
    from cli.jobs import submit as run

    if start is not None:
        job, _, step = start.partition(":")
        overrides += (f"training_config.start_from.job={json.dumps(job)}",)
        overrides += (f"training_config.start_from.step={step}",) if step else ()
    submission = read_job(path, overrides, output, code)
    asyncio.run(
        run(target, submission, output, follow_it=follow, uploads=not no_upload, tracking_dir=tracking_dir)
    )


@click.command("continue")
@click.argument("job")
@option(
    "--steps",
    type=WholeNumber(min=1),
    required=True,
    help="Number of steps of the whole, those before included.",
)
@option("--step", type=WholeNumber(min=0), help="Step of the checkpoint.  [default: the newest]")
@option(
    "--total-steps",
    type=WholeNumber(min=1),
    help="Step at which the learning rate's schedule ends.  [default: as before]",
)
@_follow_option
@client_options
def continue_(
    *,
    job: str,
    steps: int,
    step: int | None,
    total_steps: int | None,
    follow: bool,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Queue a job that goes on where another one has ended, and print its id."""
    import asyncio

    from cli.jobs import continue_job
    from protos.jobs_pb2 import ContinueRequest

    request = ContinueRequest(job=job, step=step, steps=steps, total_steps=total_steps)
    asyncio.run(continue_job(target, request, output, follow_it=follow))


_watch_option = option(
    "--watch", is_flag=True, help="Show it again every 2 seconds, in place on a terminal, until Ctrl-C."
)


@click.command()
@option("--all", "list_all", is_flag=True, help="List all jobs.")
@option(
    "--limit",
    type=WholeNumber(min=1, max=1_000_000),
    default=50,
    help="Number of newest jobs to list.",
)
@option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["queued", "running", "paused", "succeeded", "failed", "cancelled"]),
    help="List only jobs in this state; repeatable.",
)
@option("--owner", default="", metavar="PERSON", show_default=False, help="List only jobs of this person.")
@option(
    "--named",  # not --name, since hosts set TIERMESH_NAME for their daemons
    "name",
    default="",
    metavar="PART",
    show_default=False,
    help="List only jobs whose name contains this.",
)
@_watch_option
@client_options
def jobs(
    *,
    list_all: bool,
    limit: int,
    states: tuple[str, ...],
    owner: str,
    name: str,
    watch: bool,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """List the newest jobs, oldest first.

    On a narrow terminal a job's id is shown by its last 8 characters. Commands take any part of an id that no other
    job has, and `latest`.
    """
    from cli.job_reading import draw_jobs
    from cli.watch import show
    from protos.jobs_pb2 import JobState, ListRequest

    chosen = [JobState.Name(value) for value in JobState.values() if JobState.Name(value).lower() in states]
    only = ListRequest(states=chosen, owner=owner, name=name)
    show(
        target,
        output,
        lambda client: draw_jobs(client, output, None if list_all else limit, only),
        again=watch,
    )


@click.command()
@click.argument("job", required=False)
@_watch_option
@client_options
def status(*, job: str | None, watch: bool, target: AggregatorTarget, output: Output) -> None:
    """Show the cluster or, with a part of a job's id or `latest`, that job."""
    from cli.cluster_status import draw_cluster
    from cli.job_reading import draw_job
    from cli.watch import show

    show(
        target,
        output,
        lambda client: draw_cluster(client, output) if job is None else draw_job(client, job, output),
        again=watch,
    )


@click.command()
@click.argument("job")
@option("--follow", is_flag=True, help="Print new lines until the job ends.")
@option(
    "--tail",
    type=WholeNumber(min=1, max=10_000),
    metavar="N",
    help="Begin with the newest N lines.  [default: all]",
)
@option(
    "--timing",
    is_flag=True,
    help="Print all lines about a step, as scripts for logs of tt-train before 2026-04 need them.",
)
@client_options
def logs(
    *, job: str, follow: bool, tail: int | None, timing: bool, target: AggregatorTarget, output: Output
) -> None:
    """Print the log of a job, one line for each step."""
    import asyncio

    from cli.job_reading import show_logs
    from protos.jobs_pb2 import LogsRequest

    request = LogsRequest(job=job, follow=follow, tail=tail or 0, timing=timing)
    asyncio.run(show_logs(target, request, output))


@click.command()
@click.argument("job")
@option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@option(
    "--columns",
    metavar="NAMES",
    help="Print only these, for example loss,mfu; `step` comes first anyway.  [default: all]",
)
@step_range_options
@option(
    "--points",
    type=WholeNumber(min=0, max=10_000),
    metavar="N",
    help="Print at most N rows, each a summary of as many steps; 0 for a row for each step.  [default: 20; with --csv "
    "0]",
)
@client_options
def metrics(
    *,
    job: str,
    as_csv: bool,
    columns: str | None,
    first_step: int,
    last_step: int,
    points: int | None,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Print a job's loss, speed and other figures, step by step.

    The table has means. CSV has the smallest and largest values of summaries too.
    """
    import asyncio

    from cli.metrics import TABLE_ROWS, show_metrics
    from protos.jobs_pb2 import MetricsRequest

    names = [each.strip() for each in columns.split(",")] if columns else []
    if points is None:
        points = 0 if as_csv else TABLE_ROWS
    request = MetricsRequest(
        job=job, columns=names, first_step=first_step, last_step=last_step, points=points
    )
    asyncio.run(show_metrics(target, request, output, as_csv=as_csv))


@click.command()
@click.argument("job")
@option("--now", is_flag=True, help="Write no checkpoint of the newest weights.")
@client_options
def cancel(*, job: str, now: bool, target: AggregatorTarget, output: Output) -> None:
    """Cancel a job that has not ended.

    The newest weights of a running job become a checkpoint, from which `tiermesh continue` goes on.
    """
    import asyncio

    from cli.jobs import cancel as run

    asyncio.run(run(target, job, output, now=now))


@click.command()
@click.argument("job")
@click.argument("worker")
@client_options
def trust(*, job: str, worker: str, target: AggregatorTarget, output: Output) -> None:
    """Pin a running job to what a worker says of it.

    Workers say on which libraries and device they compute, and which layout the model has. `tiermesh status JOB` shows
    who says what. What the others have contributed no longer counts.

    Example: tiermesh trust 1124-174210-k3fd loudbox-2
    """
    import asyncio

    from cli.jobs import change

    asyncio.run(change(target, lambda client: client.trust(job, worker), output))


@click.command()
@click.argument("job")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@option("--step", type=WholeNumber(min=0), help="Step of the checkpoint.  [default: the newest]")
@client_options
def download(*, job: str, folder: Path, step: int | None, target: AggregatorTarget, output: Output) -> None:
    """Download a checkpoint of a job to DIR/step-XXXXXXXX and verify it."""
    import asyncio

    from cli.download import download as run

    asyncio.run(run(target, job, folder, step, output))


@click.command()
@click.argument("job_ids", metavar="[JOB...]", nargs=-1)
@option(
    "--older-than",
    metavar="AGE",
    callback=_read_by(read_age_seconds),
    help="Prune jobs that ended longer ago, for example 30d.",
)
@option("--keep", metavar="N", callback=_read_by(read_count), help="Keep this number of newest jobs.")
@option(
    "--max-bytes",
    metavar="SIZE",
    callback=_read_by(read_size_bytes),
    help="Keep the newest jobs up to this size, for example 100GB.",
)
@option(
    "--only",
    type=click.Choice(["checkpoints", "logs"]),
    help="Remove only logs, or only the checkpoints before a job's newest.  [default: the whole job]",
)
@option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@option("--yes", is_flag=True, help="Do not ask.")
@client_options
def prune(
    *,
    job_ids: tuple[str, ...],
    older_than: float | None,
    keep: int | None,
    max_bytes: int | None,
    only: str | None,
    dry_run: bool,
    yes: bool,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Remove ended jobs, with their logs and checkpoints."""
    import asyncio

    from cli.prune import PruneOptions
    from cli.prune import prune as run

    options = PruneOptions(
        jobs=job_ids,
        older_than_seconds=older_than,
        keep=keep,
        max_bytes=max_bytes,
        only=only or "",
        dry_run=dry_run,
        yes=yes,
    )
    asyncio.run(run(target, options, output))
