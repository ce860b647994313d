"""Tracker that logs to the MLflow server of MLFLOW_TRACKING_URI."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric

from services.tracking.points import Point
from services.tracking.tracker import Mark, Run

_BATCH_METRICS = 1000
"""Number of metrics that one request may have."""


class MlflowRun:
    """A run in the experiment that is the job's name; it goes on if it is opened again.

    Args:
        run: the job.
    """

    def __init__(self, run: Run) -> None:
        self._mark = Mark(run.folder / "mlflow.mark")
        self.written = self._mark.written
        self._client = MlflowClient()
        if not self._mark.run_id:
            found = self._client.get_experiment_by_name(run.project)
            experiment = found.experiment_id if found else self._client.create_experiment(run.project)
            self._mark.run_id = self._client.create_run(experiment, run_name=run.job).info.run_id
            self._mark.save()

    def write(self, points: Sequence[Point]) -> None:
        """Log the figures of each point at its step."""
        metrics = [
            Metric(name, value, int(1000 * point.unix_seconds), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _BATCH_METRICS):
            self._client.log_batch(self._mark.run_id, metrics=metrics[start : start + _BATCH_METRICS])
        self.written.add(points)
        self._mark.save()

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._mark.run_id)
