"""All trackers of one job, as those who hear of its events use them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from protos.jobs_pb2 import JobEvent
from services.config.job import JobConfig
from services.tracking.catalogue import open_tracker
from services.tracking.points import point_of_event
from services.tracking.recorder import Recorder
from services.tracking.tracker import Run


class JobRecorders:
    """The recorders of a job's trackers.

    Args:
        job: id of the job.
        config: the complete job.
        folder: folder of the job's trackers, which is created when it is needed.
        count_lost: callback, called with a tracker's name and a number of points that are lost. Any thread.
        tell: callback, called once for each tracker with a line about what is wrong. Any thread.
        after: earlier recorders of this job, each of which closes its tracker before it is opened here; None for none.

    Attributes:
        job: id of the job.
    """

    def __init__(
        self,
        job: str,
        config: JobConfig,
        folder: Path,
        *,
        count_lost: Callable[[str, int], None],
        tell: Callable[[str], None],
        after: JobRecorders | None = None,
    ) -> None:
        self.job = job
        run = Run(job, config.name, folder, json.loads(config.to_json()))
        earlier = after._recorders if after is not None else {}
        self._recorders: dict[str, Recorder] = {
            name: Recorder(
                name,
                run,
                config.steps,
                open_tracker,
                count_lost=count_lost,
                tell=tell,
                after=earlier.get(name),
            )
            for name in config.tracking.trackers
        }

    def record(self, event: JobEvent) -> None:
        """Give the trackers the figures of an event, if it has any."""
        point = point_of_event(event)
        if point is not None:
            for recorder in self._recorders.values():
                recorder.put(point)

    def end(self) -> None:
        """Have the trackers closed after the points that wait."""
        for recorder in self._recorders.values():
            recorder.end()

    def wait(self, seconds: float) -> bool:
        """Wait until all trackers are closed, at most for some seconds; return whether they are."""
        deadline = time.monotonic() + seconds
        return all(
            recorder.wait(max(0.0, deadline - time.monotonic())) for recorder in self._recorders.values()
        )
