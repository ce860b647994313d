"""`tiermesh queue`: backs up an aggregator's queue of jobs, checks a backup, and restores it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.command_group import WholeLineGroup
from cli.options import output_options, path_option
from cli.output import Output
from services.printable import counted, printable_path

if TYPE_CHECKING:
    from aggregator.storage.queue_check import QueueSummary

_state_dir_option = path_option("--state-dir", required=True, help="State dir of the aggregator.")
_file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group(cls=WholeLineGroup)
def queue() -> None:
    """Back up an aggregator's queue of jobs, and restore it."""
    from services.instrumentation import failpoints

    failpoints.arm(os.environ)


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
        f"{made}, {counted(summary.jobs, 'job')}, {summary.live_jobs} of them queued or running, cluster "
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
