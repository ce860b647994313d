"""The core of one aggregator: its jobs, their queue, its workers and the optimizer.

What outlives a job is here: what the daemons report is taken to the run of its job. What people ask for is in
requests.py, the start and the end of runs in job_runs.py, and their steps in running_job.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from aggregator.core.assignments import Assignments
from aggregator.core.dismissals import Dismissals
from aggregator.core.events import (
    CheckClosed,
    CloseWorker,
    ClusterCheckBegan,
    ClusterCheckEnded,
    DataStreamOpened,
    Effect,
    FromOptimizer,
    FromWorker,
    Input,
    LateCheckpoint,
    MemoryTold,
    MessageRefused,
    Note,
    NoticeKind,
    OptimizerConnected,
    OptimizerLost,
    Outbox,
    PiecesArrived,
    SaveJob,
    Stopping,
    Ticked,
    ToWorker,
    WeightsArrived,
    WorkerConnected,
    WorkerLost,
)
from aggregator.core.found_elsewhere import exclude_from_all
from aggregator.core.job_report import Record
from aggregator.core.job_runs import JobRuns
from aggregator.core.job_weights import pass_through, send_weights
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.admission import check_identity
from aggregator.core.membership.devices import Device
from aggregator.core.membership.members import Member
from aggregator.core.optimizer_reports import take_report as take_optimizer_report
from aggregator.core.optimizer_reports import take_weights
from aggregator.core.own_clock import OwnClock
from aggregator.core.requests import Request, take_request
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduler_input import SchedulerInput
from aggregator.core.scheduling.views import Settings
from aggregator.core.sums.plane_orders import discard_pieces
from aggregator.core.waits import OptimizerWaits, describe_lack, owed_by_optimizer
from aggregator.core.worker_activities import WorkerActivities
from aggregator.core.worker_reports import take_report
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, QUEUED, RUNNING
from protos.tensors_pb2 import ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.protocol.plan import ParameterCount
from services.tensors.layout import MAX_ELEMENTS
from services.timeouts import Timeouts


class Clock(NamedTuple):
    """The time of an input: monotonic for durations, Unix time for users."""

    monotonic_seconds: float
    unix_seconds: float


class AggregatorCore:
    """The state machine of one aggregator epoch.

    Args:
        name: the aggregator's name.
        epoch: its epoch.
        records: the jobs that have not ended, in order of submission.
        heartbeat_seconds: the heartbeat that all timeouts follow from.
        tiers: 2 if the optimizer runs in this process, else 3.
        max_parameters: maximum number of parameters of a job's model.
        max_running_jobs: maximum number of jobs that run at once, and of those that are open at the optimizer.
        max_workers_per_person: maximum number of workers of one person's jobs; None for no maximum.
        shards: the number of processes that share the chunks.
        timeout_overrides: timeouts set by hand, in seconds.

    Attributes:
        jobs: the queued, running and paused jobs.
        members: the connected workers, by session.
        runs: the running jobs by id, in order of their starts.
        optimizer: the optimizer's name; None while it is not connected.
        optimizer_lost_reason: why it is not connected, while it is not.
        optimizer_waits: for how long the optimizer has owed jobs something.
        assignments: which worker serves which job.
        activities: what the workers do with their time.
        own_clock: the time that this process has lived through.
    """

    def __init__(
        self,
        *,
        name: str,
        epoch: int,
        records: Iterable[Record],
        heartbeat_seconds: float,
        tiers: int,
        max_parameters: int = MAX_ELEMENTS,
        max_running_jobs: int = 8,
        max_workers_per_person: int | None = None,
        shards: int = 1,
        timeout_overrides: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.heartbeat_seconds = heartbeat_seconds
        self.timeouts = Timeouts.from_heartbeat(heartbeat_seconds, timeout_overrides)
        self.tiers = tiers
        self.members: dict[int, Member] = {}
        self.runs: dict[str, RunningJob] = {}
        self.optimizer: str | None = None
        self.activities = WorkerActivities()
        self.optimizer_lost_reason = "not connected yet"
        self.own_clock = OwnClock(heartbeat_seconds)
        self.optimizer_waits = OptimizerWaits()
        self._last_lease = epoch << 32  # so that no two epochs have the id of a lease in common
        self._out = Outbox()
        self.jobs = LiveJobs(records, max_parameters, self._out)
        self._dismissals = Dismissals(self.jobs, self._out)
        self._scheduler_input = SchedulerInput(
            self.members,
            self.runs,
            self.jobs,
            self.timeouts.comeback,
            self.timeouts.unfit,
            max_workers_per_person,
        )
        self.assignments = Assignments(
            self.members,
            self.runs,
            self.jobs,
            self._scheduler_input,
            Settings(max_running_jobs, self.timeouts.comeback),
        )
        make_run = partial(
            RunningJob,
            epoch=epoch,
            timeouts=self.timeouts,
            tiers=tiers,
            shards=shards,
            new_lease=self._new_lease,
            has_others=self._scheduler_input.has_others,
            worker_seconds=self.activities.times.of_job,
            out=self._out,
        )
        self._job_runs = JobRuns(self.runs, self.jobs, self.assignments, make_run, self._out)

    # ---- questions of the service ----

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements in a running job's layout; None for another job or an unknown layout."""
        run = self.runs.get(job)
        return None if run is None else run.progress.elements or None

    def awaits_description(self, session: int, description: pb.Description) -> ParameterCount | None:
        """Return how many parameters the layout must have that a worker describes; None if no layout is awaited."""
        member = self.members.get(session)
        if member is None or member.job != description.job or member.refusal is not None:
            return None
        run = self.runs[member.job]
        row = run.rows.find_described(member)
        lease = None if row is None else run.lease_book.find_initialisation(row.session, description.lease)
        return None if lease is None or lease.described else run.plan.parameters

    def wire_type(self, job: str, kind: ChunkKind) -> DType:
        """Return the type in which a running job's chunks of this kind travel."""
        return self.runs[job].plan.wire.dtype_of(kind)

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, the aggregator's is {self.epoch}")
        run, member = self.runs.get(header.job), self.members.get(session)
        if run is None:
            running = ", ".join(self.runs) or "none"
            return Refusal(f"the chunk's job is {header.job!r}, expected a running one: {running}")
        if member is None:
            return Refusal(f"the chunk's lease is {header.lease}, and its worker is no longer connected")
        if member.job != header.job:
            return Refusal(f"the chunk's job is {header.job!r}, its worker serves job {member.job or 'none'}")
        return run.check_chunk(member, header)

    # ---- inputs ----

    def handle(self, event: Input, clock: Clock) -> list[Effect]:
        """Take one input and return the effects to carry out, in order."""
        self.own_clock.note_input(clock.monotonic_seconds)
        now = self.own_clock.now(clock.monotonic_seconds)
        match event:
            case PiecesArrived():
                self._pieces_arrived(event, now)
            case WeightsArrived():
                run = self.runs.get(event.header.job)
                if run is not None:
                    with self._job_runs.guard(run):
                        take_weights(run, event.header, now)
            case FromWorker():
                self._from_worker(event, now)
            case FromOptimizer():
                self._from_optimizer(event, now)
            case LateCheckpoint():
                self.jobs.record_late_checkpoint(event.job, event.outcome)
            case WorkerConnected():
                self._worker_connected(event, now)
            case DataStreamOpened():
                self._data_stream_opened(event.session, now)
            case WorkerLost():
                self._worker_lost(event.session, event.reason, now)
            case ClusterCheckBegan():
                self.assignments.begin_check(event.sessions)
            case ClusterCheckEnded():
                self.assignments.end_check()
            case MemoryTold():
                self._scheduler_input.note_memory(event.role, event.name, event.memory)
                self.assignments.note_change()
            case OptimizerConnected():
                self._optimizer_connected(event)
            case OptimizerLost():
                self._optimizer_lost(event.reason)
            case _ if isinstance(event, Request):
                take_request(self._job_runs, event, now)
            case MessageRefused():
                run = self.runs.get(event.job)
                if run is not None and not run.ended:
                    with self._job_runs.guard(run):
                        run.end(FAILED, event.reason)
            case Ticked():
                self.own_clock.note_tick(clock.monotonic_seconds)
                self._ticked(now)
            case Stopping():
                self._job_runs.take_back_starts()
                return self._take_effects(clock)
        if not isinstance(event, PiecesArrived):  # a gradient changes nothing here
            for run in list(self.runs.values()):
                exclude_from_all(run, self._job_runs, now)
        is_connected = bool(self.optimizer)
        self._job_runs.drop_ended(optimizer=is_connected)
        if not isinstance(event, PiecesArrived):
            lived_seconds = self.own_clock.lived_seconds(clock.monotonic_seconds)
            self._job_runs.assign(
                now, lived_seconds=lived_seconds, unix_seconds=clock.unix_seconds, optimizer=is_connected
            )
            for run in list(self.runs.values()):
                with self._job_runs.guard(run):
                    if self.tiers == 3:
                        pass_through(run)
                    send_weights(run, now)
        self.activities.follow(event, self.runs, self.members, is_connected, now)
        return self._take_effects(clock)

    def _take_effects(self, clock: Clock) -> list[Effect]:
        """Return the effects, with the end time set in the records of jobs that have ended."""
        effects = self._out.take()
        for effect in effects:
            if isinstance(effect, CheckClosed) and effect.workers:
                self.jobs.note_checked(effect.workers, effect.job)
            if isinstance(effect, SaveJob | Note) and effect.job.state not in (QUEUED, RUNNING, PAUSED):
                effect.job.ended_seconds = effect.job.ended_seconds or clock.unix_seconds
                self._dismissals.note_end(effect.job)
        return effects

    # ---- workers ----

    def _worker_connected(self, event: WorkerConnected, now: float) -> None:
        hello = event.hello
        refusal = check_identity(
            hello, members=self.members.values(), now=now, silent_seconds=self.timeouts.silent
        )
        if refusal is not None:
            self._out.put(CloseWorker(event.session, str(refusal)))
            return
        for old in [each for each in self.members.values() if each.name == hello.name]:
            self._close(old, "replaced by a newer connection of the same worker", now)
        member = self.members[event.session] = Member.connect(event, now)
        self._out.put(
            ToWorker(
                event.session,
                pb.Welcome(
                    name=self.name,
                    heartbeat_seconds=self.heartbeat_seconds,
                    stall_seconds=self.timeouts.stall,
                ),
            )
        )
        self._dismissals.check(member)
        self._scheduler_input.worker_connected(member, hello)
        self.assignments.note_change()

    def _data_stream_opened(self, session: int, now: float) -> None:
        member = self.members.get(session)
        if member is None:
            return
        member.has_data_stream = True
        run = self.runs.get(member.job)
        if run is not None:
            with self._job_runs.guard(run):
                run.rows.settle(now)
                run.dispatch(now)

    def _close(self, member: Member, reason: str, now: float) -> None:
        self._out.put(CloseWorker(member.session, reason))
        self._worker_lost(member.session, reason, now)

    def _worker_lost(self, session: int, reason: str, now: float) -> None:
        member = self.members.pop(session, None)
        if member is None:
            return
        self._scheduler_input.worker_lost(member)
        self.assignments.lost(member)
        run = self.runs.get(member.job)
        if run is not None and not run.ended:
            with self._job_runs.guard(run):
                run.lost(member, reason, now)

    def _pieces_arrived(self, event: PiecesArrived, now: float) -> None:
        member, run = self.members.get(event.session), self.runs.get(event.header.job)
        if member is None or run is None or member.job != event.header.job:
            self._out.put(discard_pieces(event.header, event.arrivals))
            return
        with self._job_runs.guard(run):
            refusal = run.pieces_arrived(member, event, now)
            if refusal is not None:
                self._close(member, f"refused a chunk: {refusal}", now)

    def _from_worker(self, event: FromWorker, now: float) -> None:
        member = self.members.get(event.session)
        if member is None:
            return
        member.heard_seconds = now
        body = event.body
        if isinstance(body, pb.Heartbeat):
            member.device = Device.read(body)
        if isinstance(body, pb.Hello | pb.Heartbeat) or event.epoch != self.epoch:
            return
        run = self.runs.get(member.job)
        if run is None or run.ended or body.job != member.job or member.refusal is not None:
            return
        with self._job_runs.guard(run):
            take_report(run, member, body, now)
        self.assignments.note_report(body)

    def _ticked(self, now: float) -> None:
        for member in list(self.members.values()):
            silent = now - member.heard_seconds
            if silent > self.timeouts.silent:
                self._close(member, f"silent for {silent:.1f} s", now)
            else:
                self._dismissals.check(member)
        for run in list(self.runs.values()):
            if run.ended:
                continue
            with self._job_runs.guard(run):
                run.tick(now)
                run.job.waiting = self._describe_lack(run, now) if not run.ended else ""
        self.optimizer_waits.update(
            owed_by_optimizer(self.runs, self.optimizer or "", self.optimizer_lost_reason), now
        )
        self.assignments.note_tick()

    def _describe_lack(self, run: RunningJob, now: float) -> str:
        """Return which worker or optimizer a running job lacks to go on; empty if it lacks none."""
        if not self.optimizer:
            return f"waits for the optimizer: {self.optimizer_lost_reason}"
        if self.assignments.is_checking and not run.members:
            return "waits for the end of `tiermesh check --cluster`, which has the idle workers"
        return describe_lack(run, now) or ""

    # ---- the optimizer ----

    def _optimizer_connected(self, event: OptimizerConnected) -> None:
        is_new, self.optimizer = not self.optimizer, event.name
        self._job_runs.peer_features = event.features
        for run in list(self.runs.values()):
            with self._job_runs.guard(run):
                if is_new:
                    run.report.note("member", f"optimizer {event.name} is connected")
                self._job_runs.open(run)

    def _optimizer_lost(self, reason: str) -> None:
        for run in self.runs.values():
            if self.optimizer:
                text = f"optimizer {self.optimizer} is gone: {reason}"
                run.report.note("member", text, NoticeKind.STALLED)
        self.optimizer, self.optimizer_lost_reason = None, reason
        self.jobs.suspended.clear()  # the next one tells what it has open

    def _from_optimizer(self, event: FromOptimizer, now: float) -> None:
        body = event.body
        if isinstance(body, pb.Hello | pb.Heartbeat):
            return
        run = self.runs.get(body.job)
        if run is not None:
            with self._job_runs.guard(run):
                take_optimizer_report(run, self.optimizer or "", body, now)
        elif isinstance(body, pb.CheckpointWritten | pb.CheckpointMissed):
            self.jobs.record_checkpoint(body)
        elif isinstance(body, pb.OptimizerStatus):
            if self.jobs.note_open(body.job):
                self._scheduler_input.note_open(body.job)
                self.assignments.note_change()
        elif isinstance(body, pb.Failure):
            self.jobs.close(body.job)  # it is read from disk when it runs again

    def _new_lease(self) -> int:
        self._last_lease += 1
        return self._last_lease
