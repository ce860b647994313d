"""What a worker does with its time, as `worker_seconds`, `tiermesh status` and the metrics name it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Activity(str, Enum):
    """Activity of a worker. Those after the first four are reasons why it is idle."""

    COMPUTING = "computing"
    WIRE = "wire"
    UPDATE = "update"
    OTHERS = "others"
    FEW_MICRO_BATCHES = "few_micro_batches"
    WAITS_FOR_WORKERS = "waits_for_workers"
    WAITS_FOR_OPTIMIZER = "waits_for_optimizer"
    STALLED = "stalled"
    NO_JOB = "no_job"
    BUILDING = "building"
    WAITS_FOR_DATA = "waits_for_data"
    WAITS_FOR_CLAIM = "waits_for_claim"
    SPARE = "spare"
    UNFIT = "unfit"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


BUSY = (Activity.COMPUTING, Activity.WIRE, Activity.UPDATE, Activity.OTHERS)
"""Activities of a worker that takes part in a step or an evaluation."""
IDLE = tuple(each for each in Activity if each not in BUSY)
"""Activities of a worker without work."""
OF_JOB = frozenset(
    {
        *BUSY,
        Activity.FEW_MICRO_BATCHES,
        Activity.WAITS_FOR_WORKERS,
        Activity.WAITS_FOR_OPTIMIZER,
        Activity.STALLED,
    }
)
"""Activities of a worker that a job has, so that their time counts in the job's efficiency."""


def efficiency(worker_seconds: Mapping[str, float]) -> float | None:
    """Return the share of the workers' time in which they computed; None if there was no time."""
    total = sum(worker_seconds.values())
    return worker_seconds.get(Activity.COMPUTING.value, 0.0) / total if total > 0 else None
