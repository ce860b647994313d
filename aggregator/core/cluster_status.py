"""The status of the cluster for people, as the aggregator's core sees it."""

from __future__ import annotations

from aggregator.core.aggregator import AggregatorCore
from aggregator.core.membership.members import Member, MemberState
from aggregator.core.running_job import RunningJob
from aggregator.core.waits import describe_wait, owed_by_optimizer
from aggregator.core.worker_activities import find_activity
from protos.jobs_pb2 import ClusterStatus, Wait
from protos.jobs_pb2 import Member as MemberStatus
from services.printable import LINE_CHARACTERS, printable
from services.protocol.bounds import MAX_JOB_WAITS, MAX_WAITS


def make_status(core: AggregatorCore, now: float) -> ClusterStatus:
    """Return the cluster's status.

    Args:
        core: the aggregator's core.
        now: the time, on the monotonic clock.
    """
    own_now = core.own_clock.now(now)
    status = ClusterStatus(
        epoch=core.epoch,
        tiers=core.tiers,
        optimizer=core.optimizer or core.optimizer_lost_reason,
        running_jobs=list(core.runs),
        job_waits=_describe_jobs(core, own_now)[:MAX_JOB_WAITS],
        waiting=describe_waits(core, now) or "",
        waits=find_waits(core, now),
        worker_seconds=core.activities.times.last_hour(own_now),
    )
    status.workers.extend(_describe(core, member, own_now) for member in core.members.values())
    return status


def find_waits(core: AggregatorCore, now: float) -> list[Wait]:
    """Return what workers and the optimizer owe the running jobs, the longest wait first."""
    own_now = core.own_clock.now(now)
    owed = owed_by_optimizer(core.runs, core.optimizer or "", core.optimizer_lost_reason)
    waits = [*core.optimizer_waits.waits(owed, own_now)]
    for run in core.runs.values():
        waits += run.lease_book.waits(own_now)
        waits += run.job_members.waits(own_now)
    return sorted(waits, key=lambda wait: -wait.seconds)[:MAX_WAITS]


def _describe(core: AggregatorCore, member: Member, own_now: float) -> MemberStatus:
    run = core.runs.get(member.job)
    status = MemberStatus(
        name=member.name,
        incarnation=member.incarnation,
        job=member.job,
        state=_state_of(run, member).value,
        detail=member.detail,
        generation=member.loaded_version.generation if member.loaded_version else 0,
        step=member.loaded_version.step if member.loaded_version else 0,
        seconds_since_heard=own_now - member.heard_seconds,
        micro_batches_per_second=member.speed,
        activity=find_activity(core.runs, member, bool(core.optimizer), own_now).value,
        seconds_since_speed=core.activities.seconds_since_speed(member.session, own_now),
    )
    row = run.rows.find(member) if run is not None else None
    if row is not None:
        stages = row.stages_of(member)
        status.row, status.first_stage, status.stages = row.id, stages.first, stages.count
    return status


def _state_of(run: RunningJob | None, member: Member) -> MemberState:
    if run is None:
        return MemberState.CONNECTED
    row = run.rows.find(member)
    if row is not None and not member.hangs and run.lease_book.is_computing(row):
        return MemberState.COMPUTING
    stalled = row is not None and row.stalled and member.state is MemberState.READY
    return MemberState.STALLED if stalled else member.state


def describe_waits(core: AggregatorCore, now: float) -> str | None:
    """Return one line on what the running jobs wait for, or the next one; None if there is none."""
    if not core.runs:
        return core.assignments.describe_wait(core.own_clock.lived_seconds(now))
    texts = _describe_jobs(core, core.own_clock.now(now))
    if len(set(texts)) == 1:
        return texts[0]
    return "; ".join(f"job {job}: {text}" for job, text in zip(core.runs, texts, strict=True))


def _describe_jobs(core: AggregatorCore, own_now: float) -> list[str]:
    """Return what each running job waits for."""
    if not core.optimizer:
        return [f"waits for the optimizer: {core.optimizer_lost_reason}"] * len(core.runs)
    return [printable(describe_wait(run, own_now), LINE_CHARACTERS) for run in core.runs.values()]
