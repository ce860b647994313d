"""Aggregators with a defect that some jobs bring out, selected by the job's name.

When a job comes to step `FATAL_STEP`, the core raises: for a job named `poisoned` every time, for one named `unlucky`
the first time in the process. A job named `deadly` kills the process with its first gradient.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from aggregator.core.events import PiecesArrived
from aggregator.core.membership.members import Member
from aggregator.core.progress import JobProgress
from aggregator.core.running_job import RunningJob
from cli.main import main
from protos.tensors_pb2 import GRADIENT
from services.errors import Refusal

FATAL_STEP = 5
"""Step at which a job brings out the defect."""

_raised: set[str] = set()
_next_phase, _pieces_arrived = JobProgress.next_phase, RunningJob.pieces_arrived


def next_phase(self: JobProgress, *arguments: Any) -> None:
    """Go on to a step, or fail."""
    job = self._job
    fatal = self.version is not None and self.version.step == FATAL_STEP
    if fatal and (job.name == "poisoned" or (job.name == "unlucky" and job.name not in _raised)):
        _raised.add(job.name)
        raise IndexError("list index out of range")
    _next_phase(self, *arguments)


def pieces_arrived(self: RunningJob, member: Member, event: PiecesArrived, now: float) -> Refusal | None:
    """Handle the arrival of a chunk, or die."""
    if self.job.name == "deadly" and event.header.kind == GRADIENT:
        os.kill(os.getpid(), signal.SIGKILL)
    return _pieces_arrived(self, member, event, now)


if __name__ == "__main__":
    for owner, name, replacement in (
        (JobProgress, "next_phase", next_phase),
        (RunningJob, "pieces_arrived", pieces_arrived),
    ):
        setattr(owner, name, replacement)
    sys.exit(main())
