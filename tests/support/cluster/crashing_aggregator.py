"""Aggregators with a defect that some jobs bring out, selected by the job's name.

When a job comes to step `FATAL_STEP`, the core raises: for a job named `poisoned` every time, for one named `unlucky`
the first time in the process. A job named `deadly` kills the process with its first computed lease.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from aggregator.core.running_job import RunningJob
from cli.main import main

FATAL_STEP = 5
"""Step at which a job brings out the defect."""

_raised: set[str] = set()
_next_phase, _computed = RunningJob._next_phase, RunningJob.computed


def next_phase(self: RunningJob, *arguments: Any) -> None:
    """Go on to a step, or fail."""
    job = self.job
    fatal = self.version is not None and self.version.step == FATAL_STEP
    if fatal and (job.name == "poisoned" or (job.name == "unlucky" and job.name not in _raised)):
        _raised.add(job.name)
        raise IndexError("list index out of range")
    _next_phase(self, *arguments)


def computed(self: RunningJob, *arguments: Any) -> None:
    """Handle a report of a computed lease, or die."""
    if self.job.name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    _computed(self, *arguments)


if __name__ == "__main__":
    for name, replacement in (("_next_phase", next_phase), ("computed", computed)):
        setattr(RunningJob, name, replacement)
    sys.exit(main())
