"""Aggregators with a defect that some jobs bring out, selected by the job's name.

At step `FATAL_STEP`, a report of a computed lease makes the core raise: of a job named `poisoned` every time, of one
named `unlucky` the first time in the process. A job named `deadly` kills the process with its first report.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from aggregator.core.running_job import RunningJob
from cli.main import main
from protos import cluster_pb2 as pb

FATAL_STEP = 5
"""Step at which a job brings out the defect."""

_raised: set[str] = set()
_computed = RunningJob.computed


def computed(self: RunningJob, member: Any, report: pb.Computed, now: float) -> None:
    """Handle a report, or fail."""
    job = self.job
    if job.name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    fatal = self.version is not None and self.version.step == FATAL_STEP
    if fatal and (job.name == "poisoned" or (job.name == "unlucky" and job.name not in _raised)):
        _raised.add(job.name)
        raise IndexError("list index out of range")
    _computed(self, member, report, now)


if __name__ == "__main__":
    setattr(RunningJob, "computed", computed)  # noqa: B010  # mypy compares the names of arguments
    sys.exit(main())
