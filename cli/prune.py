"""`tiermesh prune`: show what of ended jobs would go, ask, and remove just that."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from cli.output import Output
from protos import jobs_pb2
from services.caps import MOST_JOBS
from services.errors import Failed, Refused
from services.jobs.client import JobsClient
from services.jobs.fields import state_name
from services.jobs.target import AggregatorTarget
from services.printable import counted
from services.protocol.bounds import MAX_NAMED_JOBS

PARTS = {"": jobs_pb2.WHOLE_JOB, "checkpoints": jobs_pb2.CHECKPOINTS, "logs": jobs_pb2.LOG}
"""What goes, by the value of `--only`."""


@dataclass(frozen=True)
class PruneOptions:
    """What to prune.

    Attributes:
        jobs: ids of jobs; empty for all.
        older_than_seconds: limit of the time since a job's end; None for none.
        keep: limit of the number of jobs; None for none.
        max_bytes: limit of their size; None for none.
        only: what goes, a key of `PARTS`.
        dry_run: whether nothing is removed.
        yes: whether nobody is asked.
    """

    jobs: tuple[str, ...]
    older_than_seconds: float | None
    keep: int | None
    max_bytes: int | None
    only: str
    dry_run: bool
    yes: bool


async def prune(target: AggregatorTarget, options: PruneOptions, output: Output) -> None:
    """Print a table of what goes, and remove it once it was confirmed.

    Raises:
        Refused: nothing says what to prune, nobody can be asked, or the aggregator refuses a job.
        Failed: a job that was named stays.
    """
    if not options.jobs and (options.older_than_seconds, options.keep, options.max_bytes) == (
        None,
        None,
        None,
    ):
        raise Refused("nothing to prune: name a JOB, or give --older-than, --keep or --max-bytes")
    if not (options.dry_run or options.yes or sys.stdin.isatty()):
        raise Refused(
            "standard input is no terminal, so nobody can confirm: give --yes, or look with --dry-run"
        )
    async with JobsClient(target) as client:
        found = await _ask(client, options)
        _show(found, options.only, output)
        going = [each for each in found if not each.kept]
        if going and not options.dry_run:
            if not options.yes and not click.confirm("remove this?", err=output.as_json):
                raise Failed("nothing was removed")
            found = [each for each in found if each.kept]
            for start in range(0, len(going), MAX_NAMED_JOBS):
                ids = [each.job.id for each in going[start : start + MAX_NAMED_JOBS]]
                request = jobs_pb2.PruneRequest(jobs=ids, part=PARTS[options.only])
                found += await _collect(client, request)
    gone = [each for each in found if not each.kept]
    kept = [each for each in found if each.kept]
    if gone and not options.dry_run:
        size_bytes = sum(each.bytes for each in gone)
        output.say(f"pruned {_what(options.only, len(gone))}, {size_bytes:,} bytes")
    output.result(
        {
            "dry_run": options.dry_run,
            "part": options.only or "jobs",
            "pruned": [_fields(each) for each in gone],
            "kept": [_fields(each) for each in kept],
            "bytes": sum(each.bytes for each in gone),
        }
    )
    if options.jobs and kept:
        raise Failed(f"job {kept[0].job.id}: not pruned: {kept[0].kept}")


async def _ask(client: JobsClient, options: PruneOptions) -> list[jobs_pb2.PrunedJob]:
    """Return what would go."""
    found: list[jobs_pb2.PrunedJob] = []
    request = jobs_pb2.PruneRequest(part=PARTS[options.only], dry_run=True)
    if options.older_than_seconds is not None:
        request.older_than_seconds = options.older_than_seconds
    if options.keep is not None:
        request.keep = options.keep
    if options.max_bytes is not None:
        request.max_bytes = options.max_bytes
    request.jobs.extend(options.jobs)
    found += await _collect(client, request)
    return found


async def _collect(client: JobsClient, request: jobs_pb2.PruneRequest) -> list[jobs_pb2.PrunedJob]:
    async with contextlib.aclosing(client.prune(request)) as answers:
        found: list[jobs_pb2.PrunedJob] = []
        async for each in answers:
            if len(found) == MOST_JOBS:
                raise Failed(
                    f"aggregator {client.address}: more than {MOST_JOBS} jobs to prune; name some of them"
                )
            found.append(each)
        return found


def _show(found: Sequence[jobs_pb2.PrunedJob], only: str, output: Output) -> None:
    if not found:
        output.say("nothing to prune")
        return
    output.say(f"{'JOB':<24}{'STATE':<11}{'ENDED':<12}{'CHECKPOINTS':>11}{'BYTES':>18}  NAME")
    for each in found:
        ended = time.strftime("%Y-%m-%d", time.localtime(each.job.ended_seconds))
        line = f"{each.job.id:<24}{state_name(each.job):<11}{ended:<12}"
        if each.kept:
            output.say(f"{line}stays: {each.kept}")
        else:
            output.say(f"{line}{each.checkpoints:>11}{each.bytes:>18,}  {each.job.name}")
    going = [each for each in found if not each.kept]
    size_bytes = sum(each.bytes for each in going)
    output.say(f"{_what(only, len(going))}, {size_bytes:,} bytes")


def _what(only: str, jobs: int) -> str:
    what = {"": "everything", "checkpoints": "older checkpoints", "logs": "logs"}[only]
    return f"{what} of {counted(jobs, 'job')}"


def _fields(each: jobs_pb2.PrunedJob) -> dict[str, Any]:
    return {
        "job": each.job.id,
        "name": each.job.name,
        "owner": each.job.owner or None,
        "state": state_name(each.job),
        "checkpoints": each.checkpoints,
        "bytes": each.bytes,
        "kept": each.kept or None,
    }
