"""`tiermesh jobs`, `status JOB` and `logs`: what an aggregator knows of jobs, without what following a job needs."""

from __future__ import annotations

import contextlib
import time

from cli.job_table import format_jobs
from cli.job_text import describe_job
from cli.output import Output, clock
from cli.small_curve import draw_loss_of_job
from cli.tables import wrap
from cli.watch import Picture
from protos import jobs_pb2
from services.jobs.client import JobsClient
from services.jobs.fields import job_fields
from services.jobs.target import AggregatorTarget
from services.printable import counted


async def draw_jobs(
    client: JobsClient, output: Output, limit: int | None, only: jobs_pb2.ListRequest
) -> Picture:
    """Return the newest jobs up to a limit, or all of them, oldest first.

    Args:
        client: calls the aggregator.
        output: where the table goes, which fits its width.
        limit: number of jobs; None for all.
        only: request with the filters.
    """
    jobs = await client.jobs(None if limit is None else limit + 1, only)
    lines = []
    if limit is not None and len(jobs) > limit:
        jobs = jobs[-limit:]
        lines.append(f"the newest {counted(limit, 'job')}; --all lists the older ones too")
    if jobs:
        for line in format_jobs(jobs, output.width, time.time()):
            lines += wrap(line, output.width)
    elif only.states or only.owner or only.name:
        lines.append("no such jobs; without filters, tiermesh jobs lists all")
    else:
        lines.append("no jobs yet; submit one with: tiermesh submit JOB.yaml")
    return Picture(lines, {"jobs": [job_fields(job) for job in jobs]})


async def draw_job(client: JobsClient, part: str, output: Output) -> Picture:
    """Return one job, one field per line, and on a terminal the curve of its loss."""
    job = await client.job(part)
    lines = list(describe_job(job, output.width, time.time()))
    if output.can_draw:
        lines += await draw_loss_of_job(client, job.id, output)
    return Picture(
        lines, job_fields(job), last=job.state not in (jobs_pb2.QUEUED, jobs_pb2.RUNNING, jobs_pb2.PAUSED)
    )


async def show_logs(target: AggregatorTarget, request: jobs_pb2.LogsRequest, output: Output) -> None:
    """Print a job's log, or the end of it, and new lines until the job ends if the request follows it."""
    lines = 0
    async with JobsClient(target) as client:
        job = request.job = (await client.job(request.job)).id
        async with contextlib.aclosing(client.logs(request)) as log:
            async for line in log:
                output.say(f"{clock(line.seconds)}  {line.text}")
                lines += 1
    output.result({"job": job, "lines": lines})
