"""Setting aside a job that takes the aggregator down, so that the queue goes on.

A start is in the job's record before the job runs. A step or a checkpoint shows that the job can run, so it clears the
count. A deliberate stop takes the start back. What remains are starts after which the aggregator died at once.

An aggregator that is killed from outside dies in that way too, or by another job that runs. After `SUSPECT_STARTS`
starts the job therefore waits until the aggregator has lived for `PROBATION_SECONDS` without it. Several such jobs
start one at a time, as far apart. Kills from outside that come more often than that never fail the job; a job that is
at fault does not delay its own end by more than three such waits.

An error that the aggregator survives counts apart: `MOST_CRASHES` of them at the same steps fail the job. One in a
job's own part of the core counts for that job; for others, see `note_crashes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protos.jobs_pb2 import Crash, Job
from services.errors import Refusal

MOST_STARTS = 6
"""Number of starts without progress after which a job is set aside."""
SUSPECT_STARTS = 3
"""Number of starts without progress after which a job waits before it is started again."""
PROBATION_SECONDS = 10.0
"""Time that an aggregator lives before it starts a suspect job, and before it starts the next one."""
MOST_CRASHES = 3
"""Number of errors of the aggregator at the same steps after which a job is set aside."""
_LONGEST_REASON = 200


def count_start(job: Job) -> None:
    """Note in a job's record that it is started."""
    job.starts += 1


def take_back_start(job: Job) -> None:
    """Note in a job's record that the aggregator stops deliberately."""
    job.starts = max(0, job.starts - 1)


def note_progress(job: Job) -> bool:
    """Note in a job's record that it has made a step or a checkpoint; return whether that changed the counts."""
    passed_crash = job.HasField("crash") and job.step > job.crash.step
    changed = bool(job.starts) or passed_crash
    job.starts = 0
    if passed_crash:
        job.ClearField("crash")
    return changed


def note_crash(job: Job, reason: str, step: int) -> None:
    """Note in a job's record that the aggregator failed while it ran the job.

    Args:
        job: the job's record on disk.
        reason: the error, as one line.
        step: the job's step in the memory of the aggregator that failed.
    """
    passed_last = step > job.crash.step  # its record may not have been saved since
    count = 1 if passed_last else job.crash.count + 1
    furthest = max(step, job.crash.step)
    job.crash.CopyFrom(Crash(count=count, step=furthest, reason=reason[:_LONGEST_REASON]))


def note_crashes(jobs: Sequence[Job], reason: str, steps: Mapping[str, int]) -> None:
    """Note in jobs' records that the aggregator failed while it ran them, whichever of them is at fault.

    With several, only the one that was there most often at such errors can reach `MOST_CRASHES`. Before that, it is
    started again while no other such job runs; see `is_crash_suspect`.

    Args:
        jobs: the jobs' records on disk.
        reason: the error, as one line.
        steps: the jobs' steps in the memory of the aggregator that failed, by id.
    """
    for job in jobs:
        note_crash(job, reason, steps[job.id])
    most = max((job.crash.count for job in jobs), default=0)
    at_most = [job for job in jobs if job.crash.count == most]
    for job in jobs if len(at_most) > 1 else ():
        job.crash.count = min(job.crash.count, MOST_CRASHES - 1)


def is_crash_suspect(job: Job) -> bool:
    """Return whether one more error at the same steps would set a job aside."""
    return bool(job.crash.count >= MOST_CRASHES - 1)


def why_set_aside(job: Job) -> Refusal | None:
    """Return why a job must not be started again; None if it may be."""
    if job.crash.count >= MOST_CRASHES:
        return Refusal(
            f"the aggregator failed {job.crash.count} times while it ran this job: {job.crash.reason}; see its log"
        )
    if job.starts >= MOST_STARTS:
        return Refusal(
            f"the aggregator died {job.starts} times soon after it started this job, before it made a step; see its "
            "log, and the kernel's for a lack of memory, before you submit it again"
        )
    return None


def is_suspect(job: Job) -> bool:
    """Return whether the aggregator may have died of a job, which then starts apart from others."""
    return bool(job.starts >= SUSPECT_STARTS)


def seconds_until_start(place: int, lived_seconds: float) -> float:
    """Return how long a suspect job must wait for its start.

    Args:
        place: number of suspect jobs that start before it.
        lived_seconds: how long the aggregator lives.
    """
    return max(0.0, PROBATION_SECONDS * (place + 1) - lived_seconds)
