"""The waits of running jobs, as users see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from aggregator.core.running_job import RunningJob
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Wait
from services.printable import FAILURE_CHARACTERS, join_reasons, printable
from services.protocol.phases import JobPhase

DISK_SPACE = "disk space for the job's spec and layout"
"""What an optimizer on a full disk waits for before it can go on with a job."""


class OptimizerWaits:
    """The time for which the optimizer has owed each job the same thing."""

    def __init__(self) -> None:
        self._owed: dict[str, tuple[Wait, float]] = {}  # by job, with the time since when

    def update(self, owed: Iterable[Wait], now: float) -> None:
        """Record what the optimizer owes now, without its time."""
        before = self._owed
        self._owed = {}
        for each in owed:
            known = before.get(each.job)
            self._owed[each.job] = known if known is not None and known[0] == each else (each, now)

    def waits(self, owed: Iterable[Wait], now: float) -> Iterator[Wait]:
        """Yield each wait with its time, except for those that began after the last `update`."""
        for each in owed:
            known = self._owed.get(each.job)
            if known is not None and known[0] == each:
                wait = Wait(seconds=now - known[1])
                wait.MergeFrom(each)
                yield wait


def describe_wait(run: RunningJob, now: float) -> str:
    """Return one line on what a job waits for, while the optimizer is connected."""
    detail = f"; {run.job.detail}" if run.job.detail else ""
    if run.lacks_space:
        return f"waits for the optimizer to have {DISK_SPACE}{detail}"
    if run.optimizer_state == pb.OptimizerStatus.STATE_UNSPECIFIED:
        return f"waits for the optimizer's status{detail}"
    if run.progress.phase is JobPhase.CHECKPOINT:
        return f"waits for the optimizer to write the checkpoint of step {run.job.step}{detail}"
    if run.stops is not None:
        return f"stops after its step: {run.stops.detail}"
    lack = describe_lack(run, now)
    if lack is not None:
        return lack
    if run.progress.phase is JobPhase.TRAIN and run.lease_book.step_sum is None:
        return f"waits for the optimizer to restart step {run.job.step}"
    able = run.lease_book.able_rows()
    loaded = sum(row.loaded_version == run.progress.version for row in able)
    who = "rows" if run.plan.stages > 1 else "workers"
    text = (
        f"phase {run.job.phase}, step {run.job.step}; {who} with its weights: {loaded} of {len(able)}{detail}"
    )
    hanging = [f"worker {each.name}: {each.detail}" for each in run.members.values() if each.hangs]
    return printable("; ".join([text, *hanging]), FAILURE_CHARACTERS)


def describe_lack(run: RunningJob, now: float) -> str | None:
    """Return one line on the workers that a job lacks to go on; None if it lacks none, or is not to go on."""
    if run.stops is not None:
        return None
    contention = run.claims.describe_contention()
    if contention is not None:
        return contention
    for shortage in (run.job_members.describe_hope(now), run.quorum.describe_shortage(now)):
        if shortage is not None:
            return shortage
    if not run.members:
        return "waits for a process to join" if run.plan.external else "waits for a worker to connect"
    lacking = run.rows.describe_shortage(now)
    if lacking is not None:
        return f"{lacking}; {run.job.detail}" if run.job.detail else lacking
    if run.lease_book.able_rows():
        return None
    reasons = {member.name: member.describe() for member in run.members.values()}
    return f"waits for workers to build the job: {join_reasons(reasons)}"


def owed_by_optimizer(runs: Mapping[str, RunningJob], optimizer: str, lost_reason: str) -> Iterator[Wait]:
    """Yield what the optimizer owes each running job, without the time.

    Args:
        runs: the running jobs by id.
        optimizer: the optimizer's name; empty while it is not connected.
        lost_reason: why it is not connected.
    """
    for job, run in runs.items():
        what = describe_optimizer_debt(run) if optimizer else f"a connection: {lost_reason}"
        if what is not None:
            yield Wait(role="optimizer", peer=optimizer or "optimizer", job=job, step=run.job.step, what=what)


def describe_optimizer_debt(run: RunningJob) -> str | None:
    """Return what a job waits for the connected optimizer to do; None for nothing."""
    if run.lacks_space:
        return DISK_SPACE
    if run.optimizer_state == pb.OptimizerStatus.STATE_UNSPECIFIED:
        return "its status"
    if run.progress.phase is JobPhase.CHECKPOINT:
        return "the last checkpoint"
    initialisation = run.lease_book.initialisation
    if initialisation is not None and not initialisation.awaits_worker:
        return "the allocation of the job" if initialisation.missing is None else "the first checkpoint"
    step_sum = run.lease_book.step_sum
    if run.progress.phase is JobPhase.TRAIN and step_sum is None:
        return "to restart the step"
    if run.progress.version is not None and not run.router.weights.complete:
        return "the weights"
    return "the update" if step_sum is not None and step_sum.coverage.complete else None
