"""Reads the histories of jobs from an aggregator or from folders, and writes their curves as a picture."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from aggregator.history.reader import check_request, read_history
from cli.output import Output
from cli.plot.curves import History, find_histories
from cli.plot.picture import Look, check_columns, draw
from protos.jobs_pb2 import MetricsRequest
from services.errors import Refused
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.printable import printable_path


@dataclass(frozen=True)
class PlotOptions:
    """What to draw.

    Attributes:
        sources: for each an id of a job, or a folder with histories.
        path: file to write.
        columns: names of columns.
        first_step: first step.
        last_step: last step; 0 for the newest.
        log: whether the vertical axes are logarithmic.
        smooth_steps: number of steps whose mean each point is.
        title: title of the picture; empty for the names of the jobs.
    """

    sources: tuple[str, ...]
    path: Path
    columns: tuple[str, ...]
    first_step: int
    last_step: int
    log: bool
    smooth_steps: int
    title: str


async def run(target: AggregatorTarget, options: PlotOptions, output: Output) -> None:
    """Write the picture.

    Raises:
        Refused: a job or folder has no history, or the picture would have too much, or can't be written.
        Failed: the aggregator does not answer, or a history is damaged.
    """
    check_columns(options.columns, 1)
    histories: list[History] = []
    for source in dict.fromkeys(options.sources):
        if Path(source).is_dir():
            histories += await asyncio.to_thread(_read_folder, Path(source), options)
        elif "/" in source:
            raise Refused(
                f"{printable_path(source)}: no such folder, expected one with metrics, or a job's id; correct it"
            )
        else:
            histories.append(await _read_job(target, source, options))
        check_columns(options.columns, len(histories))
    curves = [
        each.find(column, positive=options.log, smooth_steps=options.smooth_steps)
        for each in histories
        for column in options.columns
    ]
    if all(each.is_empty for each in curves):
        raise Refused(
            f"{', '.join(options.columns)} of {', '.join(options.sources)}: no step in this range has a value, "
            "expected some; choose other columns or steps"
        )
    jobs = [each.job for each in histories]
    title = options.title or (jobs[0] if len(jobs) == 1 else f"{len(jobs)} jobs")
    picture = draw(curves, Look(title, options.log, options.smooth_steps))
    try:
        options.path.write_text(picture)
    except OSError as error:
        raise Refused(
            f"--output {printable_path(options.path)}: can't be written ({error.strerror}); give another path"
        ) from None
    output.say(f"picture of {', '.join(options.columns)}: {options.path}")
    output.result({"picture": str(options.path), "curves": [each.to_json() for each in curves]})


async def _read_job(target: AggregatorTarget, part: str, options: PlotOptions) -> History:
    """Return the history that an aggregator has of a job."""
    async with JobsClient(target) as client:
        job = await client.job(part)
        history = History(f"{job.name} {job.id}".strip(), options.columns)
        async with aclosing(client.metrics(_request(options, job.id))) as parts:
            async for each in parts:
                history.add(each)
    return history


def _read_folder(folder: Path, options: PlotOptions) -> list[History]:
    """Return the histories in a folder."""
    histories: list[History] = []
    for each in find_histories(folder):
        check_columns(options.columns, len(histories) + 1)
        history = History(each.name, options.columns)
        for part in read_history(each, _request(options)):
            history.add(part)
        histories.append(history)
    return histories


def _request(options: PlotOptions, job: str = "") -> MetricsRequest:
    """Return the request of each step."""
    request = MetricsRequest(
        job=job, columns=options.columns, first_step=options.first_step, last_step=options.last_step
    )
    check_request(request)
    return request
