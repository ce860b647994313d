"""Trackers that the aggregator writes for its jobs, in the folder `tracking/JOB` of its state dir."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from protos.jobs_pb2 import RUNNING, JobEvent
from services.config.job import JobConfig
from services.errors import Refused
from services.tracking.job_recorders import JobRecorders

_MOST_ENDED = 8
"""Number of stopped jobs whose trackers may still be at work. With more, they hang, and jobs that start get none."""
_CLOSE_SECONDS = 5.0
"""Longest wait for trackers when the aggregator stops."""


class JobTracking:
    """The trackers of all running jobs. It is constructed and used on the event loop, except where a method says more.

    Args:
        folder: folder that has a folder for each job.
        find_spec: returns the spec of a job that has not ended; None for another one.
        count_lost: callback, called with a tracker's name and a number of points that are lost. Any thread.
        tell: callback, called on the event loop with a job's id and a line about what is wrong with a tracker.
    """

    def __init__(
        self,
        folder: Path,
        find_spec: Callable[[str], str | None],
        count_lost: Callable[[str, int], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._folder = folder
        self._find_spec = find_spec
        self._count_lost = count_lost
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, JobRecorders | None] = {}  # by job; None for one without trackers
        self._ended: list[JobRecorders] = []

    def record(self, event: JobEvent) -> None:
        """Give the job's trackers an event."""
        job = event.job.id
        if event.kind in ("step", "evaluation"):
            if job not in self._running:
                self._running[job] = self._begin(job)
            recorders = self._running[job]
            if recorders is not None:
                recorders.record(event)
        elif event.job.state != RUNNING:
            self._end(job)

    def remove(self, job: str) -> None:
        """Remove what trackers have written of a job. Any thread may call.

        Raises:
            OSError: the disk failed.
        """
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder / job)

    def close(self) -> None:
        """Close all trackers, or leave those that take too long. It blocks, so another thread calls it at the end."""
        for job in list(self._running):
            self._end(job)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for recorders in self._ended:
            if not recorders.wait(max(0.0, deadline - time.monotonic())):
                self._tell_later(
                    recorders.job,
                    f"trackers: not done {_CLOSE_SECONDS:g} s after the aggregator was stopped; their last points are "
                    "lost, so see that their services answer",
                )

    def _begin(self, job: str) -> JobRecorders | None:
        """Open the trackers of a job that has begun to train, or goes on; return None if it has none."""
        spec_json = self._find_spec(job)
        if spec_json is None:
            return None
        try:
            config = JobConfig.from_json(spec_json)
        except Refused:
            return None  # stored by another version
        if not config.tracking.trackers or config.tracking.written_by != "aggregator":
            return None
        self._ended = [each for each in self._ended if not each.wait(0)]
        if len(self._ended) >= _MOST_ENDED:
            text = f"no trackers: those of {len(self._ended)} ended jobs hang; restart the aggregator"
            self._tell_later(job, text)
            return None
        return JobRecorders(
            job,
            config,
            self._folder / job,
            count_lost=self._count_lost,
            tell=lambda text: self._tell_later(job, text),
            after=next((each for each in reversed(self._ended) if each.job == job), None),
        )

    def _end(self, job: str) -> None:
        """Have a job's trackers closed. They are opened again if it goes on."""
        recorders = self._running.pop(job, None)
        if recorders is not None:
            recorders.end()
            self._ended.append(recorders)

    def _tell_later(self, job: str, text: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._tell, job, text)
