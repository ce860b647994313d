"""Progress of a job: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cli.output import Output, clock, job_phase, job_state, time_left
from cli.words import spell_number
from services.jobs.fields import state_name
from services.printable import escape

if TYPE_CHECKING:
    from protos import jobs_pb2

PLAIN_SECONDS = 5.0
"""Shortest time between two lines about steps, without a terminal."""


class ProgressView:
    """Context manager that shows the events of one job."""

    def __init__(self, output: Output) -> None:
        self._output = output
        console = Console(stderr=output.as_json, highlight=False)
        self._bar = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[figures]}", markup=False),
                TextColumn("{task.fields[left]}", markup=False),
                console=console,
                expand=True,
            )
            if console.is_terminal
            else None
        )
        self._task = (
            self._bar.add_task("queued", total=1, figures="", left="", start=False) if self._bar else None
        )
        self._shown_at_seconds = 0.0

    def __enter__(self) -> ProgressView:
        self._output.erase()
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, event: jobs_pb2.JobEvent) -> None:
        """Show an event of the job."""
        job = event.job
        if self._bar and self._task is not None:
            if state_name(job) == "running":
                self._bar.start_task(self._task)
            self._bar.update(
                self._task,
                description=job_state(job) if job.waiting or not job.phase else job_phase(job),
                completed=job.step,
                total=max(job.steps, 1),
                figures=_figures(job),
                left=time_left(job),
            )
        if event.kind != "step":
            if event.text:
                self.say(f"{clock(event.seconds)}  {event.text}")
        elif not self._bar and self._due(job):
            self.say(
                f"{clock(event.seconds)}  step {job.step}/{job.steps}  {_figures(job)}  {time_left(job)}"
            )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar:
            self._bar.console.print(escape(text), markup=False, soft_wrap=True)
        else:
            self._output.say(text)

    def _due(self, job: jobs_pb2.Job) -> bool:
        now = time.monotonic()
        if now - self._shown_at_seconds < PLAIN_SECONDS and job.step != job.steps:
            return False
        self._shown_at_seconds = now
        return True


def _figures(job: jobs_pb2.Job) -> str:
    figures = []
    if job.HasField("loss"):
        figures.append(f"loss {job.loss:.4f}")
    if job.tokens_per_second:
        figures.append(f"{spell_number(job.tokens_per_second)} tokens/s")
    return "  ".join(figures)
