"""`tiermesh queue`, which shows the queue, backs it up and restores it; `pause`, `resume` and `priority`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.command_group import WholeLineGroup
from cli.options import WholeNumber, client_options, output_options, path_option
from cli.output import Output
from services.caps import MOST_PRIORITY
from services.printable import counted, printable_path

if TYPE_CHECKING:
    from aggregator.storage.queue_check import QueueSummary
    from services.jobs.target import AggregatorTarget

_state_dir_option = path_option("--state-dir", required=True, help="State dir of the aggregator.")
_file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group(cls=WholeLineGroup, invoke_without_command=True)
@client_options
@click.pass_context
def queue(context: click.Context, *, target: AggregatorTarget, output: Output) -> None:
    """Show which jobs wait, in which order; or back up and restore the queue.

    Jobs of a higher priority come first, then older ones. Paused jobs keep their place. The start of a job is estimated
    if the jobs before it have made steps.
    """
    if context.invoked_subcommand is None:
        from cli.queue_table import draw_queue
        from cli.watch import show

        show(target, output, lambda client: draw_queue(client, output), again=False)
        return
    from services.instrumentation import failpoints

    failpoints.arm(os.environ)


@click.command()
@click.argument("job")
@client_options
def pause(*, job: str, target: AggregatorTarget, output: Output) -> None:
    """Have a queued or running job wait until it is resumed.

    A running job stops after the step that it computes. Its newest weights become a checkpoint.
    """
    import asyncio

    from cli.jobs import change

    asyncio.run(change(target, lambda client: client.pause(job), output))


@click.command()
@click.argument("job")
@client_options
def resume(*, job: str, target: AggregatorTarget, output: Output) -> None:
    """Put a paused job back in the queue, in its old place."""
    import asyncio

    from cli.jobs import change

    asyncio.run(change(target, lambda client: client.resume(job), output))


@click.command(context_settings={"ignore_unknown_options": True})  # so that -5 is a number
@click.argument("job")
@click.argument("number", metavar="N", type=WholeNumber(-MOST_PRIORITY, MOST_PRIORITY))
@client_options
def priority(*, job: str, number: int, target: AggregatorTarget, output: Output) -> None:
    """Give a job another priority, from -100 to 100.

    Jobs of a higher priority start first, then older ones. Priorities above 0 are for administrators.
    """
    import asyncio

    from cli.jobs import change

    asyncio.run(change(target, lambda client: client.set_priority(job, number), output))


@queue.command()
@_state_dir_option
@path_option("--output", "-o", "target", required=True, help="File to write the backup to.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@output_options
def backup(*, state_dir: Path, target: Path, force: bool, output: Output) -> int:
    """Copy the queue into one file, also while its aggregator runs."""
    from aggregator.storage.backup import back_up_queue

    summary = back_up_queue(state_dir, target, force=force)
    output.say(f"{printable_path(target)}: {_describe(summary)}")
    output.result({"file": str(target), **_fields(summary)})
    return 0


@queue.command()
@_file_argument
@output_options
def check(*, file: Path, output: Output) -> int:
    """Check a backup: that it is complete, undamaged, and of this version or an older one."""
    from aggregator.storage.queue_check import check_queue
    from services.input_files import open_input_file

    open_input_file("", file).close()
    summary = check_queue(file, f"backup {printable_path(file)}")
    output.say(f"{printable_path(file)}: {_describe(summary)}")
    output.result({"file": str(file), **_fields(summary)})
    return 0


@queue.command()
@_file_argument
@_state_dir_option
@click.option("--adopt", is_flag=True, help="Move the jobs of another cluster's backup to this cluster.")
@output_options
def restore(*, file: Path, state_dir: Path, adopt: bool, output: Output) -> int:
    """Put a backup in place of the queue, while no daemon uses the state dir."""
    from aggregator.storage.backup import restore_queue

    restored = restore_queue(file, state_dir, adopt=adopt)
    output.say(f"restored {_describe(restored.backup)}; the next epoch is {restored.epoch + 1}")
    if restored.replaced is not None:
        unreadable = "" if restored.replaced_epoch is not None else ", which can't be read"
        output.say(f"the replaced queue{unreadable} is now {printable_path(restored.replaced)}")
    output.result(
        {
            "state_dir": str(state_dir),
            "replaced": str(restored.replaced) if restored.replaced is not None else None,
            **_fields(restored.backup),
            "cluster": restored.cluster or None,
            "epoch": restored.epoch,
        }
    )
    return 0


def _describe(summary: QueueSummary) -> str:
    made = "a copy without the time and checksum of a backup"
    if summary.made_seconds is not None:
        made = f"a backup of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(summary.made_seconds))}"
    return (
        f"{made}, {counted(summary.jobs, 'job')}, {summary.live_jobs} of them not ended, cluster "
        f"{summary.cluster or '(none)'}, epoch {summary.epoch}"
    )


def _fields(summary: QueueSummary) -> dict[str, Any]:
    return {
        "jobs": summary.jobs,
        "live_jobs": summary.live_jobs,
        "cluster": summary.cluster or None,
        "epoch": summary.epoch,
        "format": summary.format,
        "made_seconds": summary.made_seconds,
    }
