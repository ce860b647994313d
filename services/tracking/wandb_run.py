"""Tracker that logs to Weights & Biases, online or offline.

The key is the writer's own, in its environment: a job has no secrets. WANDB_MODE decides whether the run is online;
without it, a run is online if WANDB_API_KEY is set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import wandb

from services.tracking.points import Point
from services.tracking.tracker import Mark, Run


class WandbRun:
    """A run whose id is the job's, in the project that is the job's name; it is resumed if it is opened again.

    Args:
        run: the job.
    """

    def __init__(self, run: Run) -> None:
        self._mark = Mark(run.folder / "wandb.mark")
        self.written = self._mark.written
        default = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        # It must neither replace this process's output streams nor ask at a terminal.
        settings = wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
        self._run = wandb.init(
            project=run.project,
            id=run.job,
            name=run.job,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            mode=os.environ.get("WANDB_MODE", default),
            settings=settings,
        )

    def write(self, points: Sequence[Point]) -> None:
        """Log the figures of each point at its step."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)
        self.written.add(points)
        self._mark.save()

    def close(self) -> None:
        """Upload what is left, and end the run."""
        self._run.finish()
