"""`tiermesh jobs`: jobs as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cli.output import job_state
from cli.tables import fit_table
from cli.words import short_duration, spell_share
from protos import jobs_pb2
from services.printable import escape

SHORT_ID_CHARACTERS = 8
"""Last characters of an id that a narrow table shows; they are random, and name the job in all commands."""

_WIDE_BAR, _NARROW_BAR = 10, 5
_LEAST_NAME = 7

Cell = Callable[[jobs_pb2.Job, float], str]


def format_jobs(jobs: Sequence[jobs_pb2.Job], width: int | None, now: float) -> Iterator[str]:
    """Yield a table of jobs, with a header, and then what running jobs wait for.

    A table that is too wide gets shorter names, then shorter ids and bars. Columns that are empty for all jobs are
    left out.

    Args:
        jobs: the jobs, in the order of the rows.
        width: columns of the terminal; None for a table of any width.
        now: Unix time.
    """
    for layout, least_name in ((_WIDE, 12), (_NARROW, _LEAST_NAME)):
        table = [[title, *(escape(cell(job, now)) for job in jobs)] for title, cell in layout.items()]
        columns = [column for column in table if any(column[1:])]
        rows = list(zip(*columns, strict=True))
        shrinks = {column[0]: least_name for column in columns if column[0] in ("NAME", "OWNER")}
        lines = fit_table(rows, width, shrinks)
        if lines is not None:
            break
    else:  # a very narrow terminal
        lines = fit_table([row[:4] for row in rows], None, {}) or []
    yield from lines
    for job in jobs:
        if job.waiting and not job.position:  # `tiermesh queue` says why the others wait
            yield f"job {job.id} {escape(job.waiting)}"


def progress_bar(share: float, cells: int) -> str:
    """Return a bar in ASCII of so many cells."""
    full = round(min(1.0, max(0.0, share)) * cells)
    return "#" * full + "." * (cells - full)


def _share(job: jobs_pb2.Job) -> float:
    return float(job.step / job.steps) if job.steps else 0.0


def _progress(job: jobs_pb2.Job, now: float) -> str:
    return f"{progress_bar(_share(job), _WIDE_BAR)} {spell_share(_share(job)):>5} {job.step}/{job.steps}"


def _narrow_progress(job: jobs_pb2.Job, now: float) -> str:
    return f"{progress_bar(_share(job), _NARROW_BAR)} {spell_share(_share(job)).replace(' ', ''):>4}"


def _age(job: jobs_pb2.Job, now: float) -> str:
    return short_duration(now - job.submitted_seconds) if job.submitted_seconds else ""


def _took(job: jobs_pb2.Job, now: float) -> str:
    return short_duration((job.ended_seconds or now) - job.started_seconds) if job.started_seconds else ""


def _left(job: jobs_pb2.Job, now: float) -> str:
    return short_duration(job.seconds_left) if job.HasField("seconds_left") else ""


_REST: Mapping[str, Cell] = {
    "AGE": _age,
    "TOOK": _took,
    "LEFT": _left,
    "OWNER": lambda job, now: job.owner,
    "PRIORITY": lambda job, now: str(job.priority or ""),
    "WORKERS": lambda job, now: str(job.workers) if job.state == jobs_pb2.RUNNING else "",
}
_WIDE: Mapping[str, Cell] = {
    "JOB": lambda job, now: job.id,
    "NAME": lambda job, now: job.name,
    "STATE": lambda job, now: job_state(job),
    "PROGRESS": _progress,
    "LOSS": lambda job, now: f"{job.loss:.4f}" if job.HasField("loss") else "",
    **_REST,
}
_NARROW: Mapping[str, Cell] = {
    "JOB": lambda job, now: job.id[-SHORT_ID_CHARACTERS:],
    "NAME": lambda job, now: job.name,
    "STATE": lambda job, now: job_state(job),
    "PROGRESS": _narrow_progress,
    **_REST,
}
