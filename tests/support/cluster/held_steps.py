"""A limit of the steps that jobs may make, so that no job ends before a test has done what it does during the job.

The limit is in a file, which each worker of the cluster reads before it computes gradients. A worker that is held goes
on with everything else: it sends heartbeats, drops leases, and stops.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from worker.lease_runner import LeaseRunner, _LeaseRun

VARIABLE = "HELD_STEPS_FILE"
"""Environment variable of a worker with the path of the file."""
_POLL_SECONDS = 0.02


def allow_steps(path: Path, steps: int | None) -> None:
    """Let jobs make this many steps, or any number."""
    temporary = path.with_suffix(".new")
    temporary.write_text("" if steps is None else str(steps))
    temporary.replace(path)


def is_allowed(path: Path, step: int) -> bool:
    """Return whether the step with this index, from 0 on, may be computed."""
    text = path.read_text()
    return not text or step < int(text)


def hold_steps(path: Path) -> None:
    """Make this process a worker that is held."""
    from worker.lease_runner import LeaseRunner
    from worker.row_exchange import LeaseDropped

    train = LeaseRunner._train

    def wait_and_train(self: LeaseRunner, run: _LeaseRun) -> None:
        while not is_allowed(path, run.lease.step):
            if self._is_dropped():
                raise LeaseDropped("dropped while it was held")
            time.sleep(_POLL_SECONDS)
        train(self, run)

    mock.patch.object(LeaseRunner, "_train", wait_and_train).start()
