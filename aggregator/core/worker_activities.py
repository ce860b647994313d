"""What each worker does now, as the core's state says after each input."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.core.events import FromWorker, Input, PiecesArrived, Ticked, WeightsArrived, WorkerLost
from aggregator.core.membership.members import Member, MemberState
from aggregator.core.running_job import RunningJob
from aggregator.core.worker_times import WorkerTimes
from protos.cluster_pb2 import Computed
from services.protocol.activities import Activity
from services.protocol.phases import JobPhase

_HINDRANCES = {
    MemberState.REFUSED: Activity.REFUSED,
    MemberState.UNFIT: Activity.UNFIT,
    MemberState.WAITING: Activity.WAITS_FOR_CLAIM,
    MemberState.SPARE: Activity.SPARE,
    MemberState.BUILDING: Activity.BUILDING,
    MemberState.CONNECTED: Activity.BUILDING,
}
"""States of workers that take no part in their job, and what they do then."""


class WorkerActivities:
    """Follows the workers, and puts into each running job's record how its workers' time is spent.

    After most inputs only the worker that an input is from is looked at; after a turn of its job, all of the job's are.

    Attributes:
        times: the time of the workers.
    """

    def __init__(self) -> None:
        self.times = WorkerTimes()
        self._turns: dict[str, object] = {}  # by job
        self._measured_seconds: dict[int, float] = {}

    def follow(
        self,
        event: Input,
        runs: Mapping[str, RunningJob],
        members: Mapping[int, Member],
        optimizer: bool,
        now: float,
    ) -> None:
        """Take account of an input that the core has handled.

        Args:
            event: the input.
            runs: the running jobs by id.
            members: the connected workers, by session.
            optimizer: whether the optimizer is connected.
            now: the time.
        """
        # The first chunk of weights, and the last one of a gradient, have index 0: once a step is enough.
        if isinstance(event, WeightsArrived) and event.header.index:
            return
        if isinstance(event, PiecesArrived) and all(piece.chunk for piece in event.pieces):
            return
        for ended in self._turns.keys() - runs.keys():
            del self._turns[ended]
            self.times.end_job(ended, now)
        turned = {job for job, run in runs.items() if self._turns_to(run, optimizer, now)}
        is_tick = isinstance(event, Ticked)
        if is_tick or isinstance(event, WorkerLost):
            for session in self.times.sessions - members.keys():
                self.times.drop(session, now)
                self._measured_seconds.pop(session, None)
        member = members.get(getattr(event, "session", 0))
        changed = (
            [each for each in members.values() if each.job in turned or is_tick] if turned or is_tick else []
        )
        if member is not None and member not in changed:
            changed.append(member)
        for each in changed:
            computed_seconds = None
            if (
                isinstance(event, FromWorker)
                and event.session == each.session
                and isinstance(event.body, Computed)
            ):
                computed_seconds = event.body.seconds
                self._measured_seconds[each.session] = now
            activity = find_activity(runs, each, optimizer, now)
            self.times.note(each.session, activity, now, computed_seconds, job=each.job)
        for job in runs.keys() if is_tick else turned:
            record = runs[job].job
            record.workers = sum(each.able for each in runs[job].members.values())
            record.worker_seconds.clear()
            record.worker_seconds.update(self.times.of_job(job, now))

    def _turns_to(self, run: RunningJob, optimizer: bool, now: float) -> bool:
        """Return whether all workers of a job turn to something else."""
        job, turn = run.job.id, _turn_of(run, optimizer, now)
        if job not in self._turns:
            self.times.begin_job(job, run.job.worker_seconds)
        turned = self._turns.get(job) != turn
        self._turns[job] = turn
        return turned

    def seconds_since_speed(self, session: int, now: float) -> float:
        """Return the time since a worker's speed was measured; 0 if it was not."""
        return now - self._measured_seconds.get(session, now)


def _turn_of(run: RunningJob, optimizer: bool, now: float) -> object:
    """Return what changes when all workers of a job turn to something else."""
    step_sum = run.lease_book.step_sum
    complete = step_sum is not None and step_sum.coverage.complete
    is_short = run.quorum.describe_shortage(now) is not None
    return (
        len(run.members),
        run.progress.version,
        run.progress.phase,
        step_sum is None,
        complete,
        is_short,
        optimizer,
    )


def find_activity(runs: Mapping[str, RunningJob], member: Member, optimizer: bool, now: float) -> Activity:
    """Return what a worker does, or why it is idle.

    Args:
        runs: the running jobs by id.
        member: the worker.
        optimizer: whether the optimizer is connected.
        now: the time.
    """
    run = runs.get(member.job)
    if run is None:
        full = any(len(each.members) >= each.plan.max_workers for each in runs.values())
        return Activity.FEW_MICRO_BATCHES if full else Activity.NO_JOB
    hindrance = _find_hindrance(member)
    if hindrance is not None:
        return hindrance
    row, book = run.rows.find(member), run.lease_book
    if row is None:
        return Activity.SPARE
    stalled = row.stalled or member.hangs
    if book.is_computing(row):
        return Activity.STALLED if stalled else Activity.COMPUTING
    if not optimizer:
        return Activity.WAITS_FOR_OPTIMIZER
    if run.quorum.describe_shortage(now) is not None:
        return Activity.WAITS_FOR_WORKERS
    if stalled:
        return Activity.STALLED
    step_sum = book.step_sum
    if step_sum is None:
        return Activity.UPDATE if run.progress.phase is JobPhase.CHECKPOINT else Activity.OTHERS
    mine = step_sum.of_session(row.session)
    if not mine and run.plan.micro_batches < len(book.able_rows()):
        return Activity.FEW_MICRO_BATCHES
    if step_sum.coverage.complete:
        return Activity.UPDATE
    unsent = any(step_sum.coverage.misses(each.node) for each in mine)
    return Activity.WIRE if unsent else Activity.OTHERS


def _find_hindrance(member: Member) -> Activity | None:
    """Return why a worker takes no part in its job; None if it does."""
    found = _HINDRANCES.get(member.state, None if member.able else Activity.BUILDING)
    return Activity.WAITS_FOR_DATA if found is Activity.BUILDING and member.fetch is not None else found
