"""`tiermesh queue`: the jobs that have not ended, in the order in which they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cli.job_table import SHORT_ID_CHARACTERS
from cli.output import Output, job_state
from cli.tables import fit_table, wrap
from cli.watch import Picture
from cli.words import short_duration
from protos.jobs_pb2 import PAUSED, QUEUED, RUNNING, Job, ListRequest
from services.jobs.client import JobsClient
from services.jobs.fields import job_fields
from services.printable import escape

_LIVE = ListRequest(states=[QUEUED, RUNNING, PAUSED])
_ORDER = (RUNNING, QUEUED, PAUSED)


async def draw_queue(client: JobsClient, output: Output) -> Picture:
    """Return the running jobs, the queued ones in the order of their starts, and the paused ones."""
    found = await client.jobs(None, _LIVE)
    jobs = sorted(found, key=lambda job: (_ORDER.index(job.state), job.position))
    lines = [each for line in format_queue(jobs, output.width) for each in wrap(line, output.width)]
    return Picture(lines or ["the queue is empty"], {"jobs": [job_fields(job) for job in jobs]})


def format_queue(jobs: Sequence[Job], width: int | None) -> Iterator[str]:
    """Yield a table of jobs with a header, in which ids and then names get shorter to fit a width, if any."""
    if not jobs:
        return
    for shortest in (False, True):
        columns = dict(_COLUMNS)
        if shortest:
            columns["JOB"] = lambda job: job.id[-SHORT_ID_CHARACTERS:]
        rows = [list(columns), *([escape(cell(job)) for cell in columns.values()] for job in jobs)]
        shrinks = {"NAME": 7, "OWNER": 7, "WAITS FOR": 12}
        lines = fit_table(rows, width, shrinks)
        if lines is not None:
            break
    else:  # a very narrow terminal
        lines = fit_table([row[:4] for row in rows], None, {}) or []
    yield from lines


def _workers(job: Job) -> str:
    """Return how many workers a job wants, as in "2-8"."""
    if job.max_workers <= job.min_workers:
        return str(job.min_workers or "")
    return f"{job.min_workers}-{job.max_workers}"


def _start(job: Job) -> str:
    return short_duration(job.estimated_start_seconds) if job.HasField("estimated_start_seconds") else ""


def _waits_for(job: Job) -> str:
    return job.waiting.removeprefix("waits for ") or (job.detail if job.state == PAUSED else "")


_COLUMNS: Mapping[str, Callable[[Job], str]] = {
    "#": lambda job: str(job.position or ""),
    "JOB": lambda job: job.id,
    "NAME": lambda job: job.name,
    "STATE": job_state,
    "PRIORITY": lambda job: str(job.priority),
    "WORKERS": _workers,
    "STARTS IN": _start,
    "OWNER": lambda job: job.owner,
    "WAITS FOR": _waits_for,
}
