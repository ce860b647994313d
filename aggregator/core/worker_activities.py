"""What each worker does now, as the core's state says after each input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.core.events import ChunkArrived, FromWorker, Input, Ticked, WeightsArrived, WorkerLost
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
"""States of workers that take no part in the running job, and what they do then."""


class WorkerActivities:
    """Follows the workers, and puts into the running job's record how their time is spent.

    After most inputs only the worker that an input is from is looked at; after a turn of the job, all are.

    Attributes:
        times: the time of the workers.
    """

    def __init__(self) -> None:
        self.times = WorkerTimes()
        self._job = ""
        self._turn: object = None
        self._measured_seconds: dict[int, float] = {}

    def follow(
        self, event: Input, run: RunningJob | None, members: Mapping[int, Member], optimizer: bool, now: float
    ) -> None:
        """Take account of an input that the core has handled.

        Args:
            event: the input.
            run: the running job; None if there is none.
            members: the connected workers, by session.
            optimizer: whether the optimizer is connected.
            now: the time.
        """
        if isinstance(event, ChunkArrived | WeightsArrived) and event.header.index:
            return  # the first chunk of weights, and the last one of a gradient, have index 0: once a step is enough
        job = run.job.id if run is not None else ""
        if job != self._job:
            self.times.begin_job(run.job.worker_seconds if run is not None else {}, now)
            self._job = job
        turn = _turn_of(run, optimizer, now)
        turned, self._turn = turn != self._turn, turn
        changed: Iterable[Member] = ()
        if turned or isinstance(event, Ticked | WorkerLost):
            changed = members.values()
            for session in self.times.sessions - members.keys():
                self.times.drop(session, now)
                self._measured_seconds.pop(session, None)
        else:
            member = members.get(getattr(event, "session", 0))
            changed = () if member is None else (member,)
        for each in changed:
            computed_seconds = None
            if (
                isinstance(event, FromWorker)
                and event.session == each.session
                and isinstance(event.body, Computed)
            ):
                computed_seconds = event.body.seconds
                self._measured_seconds[each.session] = now
            self.times.note(each.session, find_activity(run, each, optimizer, now), now, computed_seconds)
        if run is not None and (turned or isinstance(event, Ticked)):
            run.job.workers = sum(each.able for each in members.values())
            run.job.worker_seconds.clear()
            run.job.worker_seconds.update(self.times.of_job(now))

    def seconds_since_speed(self, session: int, now: float) -> float:
        """Return the time since a worker's speed was measured; 0 if it was not."""
        return now - self._measured_seconds.get(session, now)


def _turn_of(run: RunningJob | None, optimizer: bool, now: float) -> object:
    """Return what changes when all workers of a job turn to something else."""
    if run is None:
        return None
    step_sum = run.lease_book.step_sum
    complete = step_sum is not None and step_sum.coverage.complete
    is_short = run.quorum.describe_shortage(now) is not None
    return (
        run.job.id,
        run.progress.version,
        run.progress.phase,
        step_sum is None,
        complete,
        is_short,
        optimizer,
    )


def find_activity(run: RunningJob | None, member: Member, optimizer: bool, now: float) -> Activity:
    """Return what a worker does, or why it is idle.

    Args:
        run: the running job; None if there is none.
        member: the worker.
        optimizer: whether the optimizer is connected.
        now: the time.
    """
    if run is None:
        return Activity.NO_JOB
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
    """Return why a worker takes no part in the running job; None if it does."""
    found = _HINDRANCES.get(member.state, None if member.able else Activity.BUILDING)
    return Activity.WAITS_FOR_DATA if found is Activity.BUILDING and member.fetch is not None else found
