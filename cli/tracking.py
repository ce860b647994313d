"""Trackers that the command writes which submits a job and follows it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cli.output import Output
from services.errors import Refused
from services.tracking.catalogue import check_trackers
from services.tracking.job_recorders import JobRecorders

if TYPE_CHECKING:
    from protos.jobs_pb2 import JobEvent
    from services.config.job import JobConfig

_CLOSE_SECONDS = 60.0
"""Longest wait for trackers at the end of the job; wandb uploads what it has."""


def check_follower(config: JobConfig, *, follows: bool) -> None:
    """Check that this command can write the trackers that a job leaves to it.

    Raises:
        Refused: it does not follow the job, or a package is missing.
    """
    if config.tracking.written_by != "submitter" or not config.tracking.trackers:
        return
    if not follows:
        raise Refused(
            "training_config.tracking.written_by: submitter given without --follow, expected both, as this command "
            "writes the trackers; give --follow, or written_by: aggregator"
        )
    check_trackers(config.tracking.trackers, "here")


def leave_trackers_to_aggregator(config: JobConfig) -> JobConfig:
    """Return a job whose trackers the aggregator writes: on one machine that is the same place, for `--resume` too."""
    tracking = config.tracking.model_copy(update={"written_by": "aggregator"})
    return config.model_copy(update={"tracking": tracking})


class FollowedTracking:
    """Context manager that writes the trackers of a job that is followed.

    Args:
        config: the job; None or one whose trackers the aggregator writes needs none.
        folder: folder that gets a folder for each job.
        output: gets a line about a tracker that fails.
    """

    def __init__(self, config: JobConfig | None, folder: Path, output: Output) -> None:
        self._config = config
        self._folder = folder
        self._output = output
        self._recorders: JobRecorders | None = None

    def __enter__(self) -> FollowedTracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorders is not None:
            self._recorders.end()
            if not self._recorders.wait(_CLOSE_SECONDS):
                self._output.warn(
                    f"trackers: not done {_CLOSE_SECONDS:g} s after the job; their last points are lost"
                )

    def record(self, event: JobEvent) -> None:
        """Give the trackers an event."""
        if self._config is None or self._config.tracking.written_by != "submitter":
            return
        if self._recorders is None:
            self._recorders = JobRecorders(
                event.job.id,
                self._config,
                self._folder / event.job.id,
                count_lost=lambda name, points: None,
                tell=self._output.warn,
            )
        self._recorders.record(event)
