"""The core of one aggregator: its jobs, their queue, its workers and the optimizer.

What outlives a job is here. The steps of the running job are in running_job.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aggregator.core.events import (
    CancelRequested,
    ChunkArrived,
    CloseWorker,
    ClusterCheckBegan,
    ClusterCheckEnded,
    DataStreamOpened,
    Effect,
    FromOptimizer,
    FromWorker,
    Input,
    LateCheckpoint,
    MessageRefused,
    Note,
    OptimizerConnected,
    OptimizerLost,
    Outbox,
    SaveJob,
    Stopping,
    Submitted,
    Ticked,
    ToWorker,
    TrustRequested,
    WeightsArrived,
    WorkerConnected,
    WorkerLost,
)
from aggregator.core.job_report import Record
from aggregator.core.job_weights import send_weights
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.admission import check_identity
from aggregator.core.membership.claims import trust
from aggregator.core.membership.devices import Device
from aggregator.core.membership.members import Member, MemberState
from aggregator.core.optimizer_reports import take_report as take_optimizer_report
from aggregator.core.optimizer_reports import take_weights
from aggregator.core.own_clock import OwnClock
from aggregator.core.running_job import RunningJob
from aggregator.core.setting_aside import count_start, take_back_start
from aggregator.core.sums.plane_orders import discard_piece
from aggregator.core.waits import OptimizerWait, describe_lack, describe_optimizer_debt, describe_wait
from aggregator.core.worker_activities import WorkerActivities, find_activity
from aggregator.core.worker_reports import take_report
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, ClusterStatus, Wait
from protos.jobs_pb2 import Member as MemberStatus
from protos.tensors_pb2 import ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.protocol.bounds import MAX_WAITS, MAX_WORKERS
from services.protocol.plan import JobPlan, ParameterCount
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
        shards: the number of processes that share the chunks.
        timeout_overrides: timeouts set by hand, in seconds.

    Attributes:
        jobs: the queued and running jobs.
        members: the connected workers, by session.
        run: the running job; None if there is none.
        optimizer: the optimizer's name; None while it is not connected.
        check_under_way: whether a check of meshes and links is under way, which no job may disturb.
        activities: what the workers do with their time.
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
        shards: int = 1,
        timeout_overrides: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.heartbeat_seconds = heartbeat_seconds
        self.timeouts = Timeouts.from_heartbeat(heartbeat_seconds, timeout_overrides)
        self.tiers = tiers
        self._shards = shards
        self.members: dict[int, Member] = {}
        self.run: RunningJob | None = None
        self.optimizer: str | None = None
        self.check_under_way = False
        self.activities = WorkerActivities()
        self._optimizer_lost_reason = "not connected yet"
        self._optimizer_wait = OptimizerWait()
        self._last_lease = epoch << 32  # so that no two epochs have the id of a lease in common
        self._own_clock = OwnClock(heartbeat_seconds)
        self._out = Outbox()
        self._passed: tuple[str, int] | None = None  # job and elements that a plane without tensors was told
        self.jobs = LiveJobs(records, max_parameters, self._out)

    # ---- questions of the service ----

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements in the running job's layout; None for another job or an unknown layout."""
        return self.run.progress.elements or None if self.run is not None and self.run.job.id == job else None

    def awaits_description(self, session: int, description: pb.Description) -> ParameterCount | None:
        """Return how many parameters the layout must have that a worker describes; None if no layout is awaited."""
        run, member = self.run, self.members.get(session)
        if run is None or member is None or run.job.id != description.job or member.refusal is not None:
            return None
        row = run.rows.find_described(member)
        lease = None if row is None else run.lease_book.find_initialisation(row.session, description.lease)
        return None if lease is None or lease.described else run.plan.parameters

    def wire_type(self, kind: ChunkKind) -> DType:
        """Return the type in which the running job's chunks of this kind travel."""
        assert self.run is not None
        return self.run.plan.wire.dtype_of(kind)

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, the aggregator's is {self.epoch}")
        if self.run is None or self.run.job.id != header.job:
            running = self.run.job.id if self.run else "none"
            return Refusal(f"the chunk's job is {header.job!r}, the running job is {running}")
        member = self.members.get(session)
        if member is None:
            return Refusal(f"the chunk's lease is {header.lease}, and its worker is no longer connected")
        return self.run.check_chunk(member, header)

    def status(self, now: float) -> ClusterStatus:
        """Return the cluster's status for users."""
        own_now = self._own_clock.now(now)
        status = ClusterStatus(
            epoch=self.epoch,
            tiers=self.tiers,
            optimizer=self.optimizer or self._optimizer_lost_reason,
            running_job=self.run.job.id if self.run else "",
            waiting=self.describe_wait(now) or "",
            waits=self.waits(now),
            worker_seconds=self.activities.times.last_hour(own_now),
        )
        status.workers.extend(self._describe(member, own_now) for member in self.members.values())
        return status

    def _describe(self, member: Member, own_now: float) -> MemberStatus:
        status = MemberStatus(
            name=member.name,
            incarnation=member.incarnation,
            state=self._state_of(member).value,
            detail=member.detail,
            generation=member.loaded_version.generation if member.loaded_version else 0,
            step=member.loaded_version.step if member.loaded_version else 0,
            seconds_since_heard=own_now - member.heard_seconds,
            micro_batches_per_second=member.speed,
            activity=find_activity(self.run, member, bool(self.optimizer), own_now).value,
            seconds_since_speed=self.activities.seconds_since_speed(member.session, own_now),
        )
        row = self.run.rows.find(member) if self.run is not None else None
        if row is not None:
            stages = row.stages_of(member)
            status.row, status.first_stage, status.stages = row.id, stages.first, stages.count
        return status

    def _state_of(self, member: Member) -> MemberState:
        if self.run is None:
            return MemberState.CONNECTED
        row = self.run.rows.find(member)
        if row is not None and not member.hangs and self.run.lease_book.is_computing(row):
            return MemberState.COMPUTING
        stalled = row is not None and row.stalled and member.state is MemberState.READY
        return MemberState.STALLED if stalled else member.state

    def waits(self, now: float) -> list[Wait]:
        """Return what workers and the optimizer owe the running job, the longest wait first."""
        if self.run is None:
            return []
        own_now = self._own_clock.now(now)
        waits = self._optimizer_wait.waits(self._owed_by_optimizer(), own_now)
        waits += self.run.lease_book.waits(own_now)
        waits += self.run.job_members.waits(own_now)
        return sorted(waits, key=lambda wait: -wait.seconds)[:MAX_WAITS]

    def _owed_by_optimizer(self) -> Wait | None:
        """Return what the optimizer owes the running job, without the time; None for nothing."""
        if self.run is None:
            return None
        if not self.optimizer:
            what: str | None = f"a connection: {self._optimizer_lost_reason}"
        else:
            what = describe_optimizer_debt(self.run)
        if what is None:
            return None
        job = self.run.job
        return Wait(
            role="optimizer", peer=self.optimizer or "optimizer", job=job.id, step=job.step, what=what
        )

    def describe_wait(self, now: float) -> str | None:
        """Return one line on what the running job, or the next one, waits for; None if there is none."""
        if self.run is None:
            if self.check_under_way and self.jobs.records:
                return "the next job waits for the end of `tiermesh check --cluster`"
            return self.jobs.describe_probation(self._own_clock.lived_seconds(now))
        if not self.optimizer:
            return f"waits for the optimizer: {self._optimizer_lost_reason}"
        return describe_wait(self.run, self._own_clock.now(now))

    def _describe_lack(self, now: float) -> str:
        """Return which worker or optimizer the running job lacks to go on; empty if it lacks none."""
        assert self.run is not None
        if not self.optimizer:
            return f"waits for the optimizer: {self._optimizer_lost_reason}"
        return describe_lack(self.run, now) or ""

    # ---- inputs ----

    def handle(self, event: Input, clock: Clock) -> list[Effect]:
        """Take one input and return the effects to carry out, in order."""
        self._own_clock.note_input(clock.monotonic_seconds)
        now = self._own_clock.now(clock.monotonic_seconds)
        match event:
            case ChunkArrived():
                self._chunk_arrived(event, now)
            case WeightsArrived():
                if self._concerns_run(event.header.job) and self.run is not None:
                    take_weights(self.run, event.header, now)
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
                self.check_under_way = True
            case ClusterCheckEnded():
                self.check_under_way = False
            case OptimizerConnected():
                if self.run is not None and not self.optimizer:
                    self.run.report.note("member", f"optimizer {event.name} is connected")
                self.optimizer = event.name
                self._open_job()
            case OptimizerLost():
                if self.run is not None and self.optimizer:
                    self.run.report.note("member", f"optimizer {self.optimizer} is gone: {event.reason}")
                self.optimizer, self._optimizer_lost_reason = None, event.reason
            case Submitted():
                self.jobs.add(event)
            case CancelRequested():
                self._cancel(event)
            case TrustRequested():
                self._trust(event, now)
            case MessageRefused():
                if self._concerns_run(event.job) and self.run is not None and not self.run.ended:
                    self.run.end(FAILED, event.reason)
            case Ticked():
                self._own_clock.note_tick(clock.monotonic_seconds)
                self._ticked(now)
            case Stopping():
                self._stop()
                return self._take_effects(clock)
        self._drop_ended_job()
        self._start_next_job(now, clock)
        if not isinstance(event, ChunkArrived):  # a gradient changes nothing here
            self._order_weights(now)
        self.activities.follow(event, self.run, self.members, bool(self.optimizer), now)
        return self._take_effects(clock)

    def _concerns_run(self, job: str) -> bool:
        return self.run is not None and self.run.job.id == job

    def _drop_ended_job(self) -> None:
        if self.run is not None and self.run.ended:
            del self.jobs.records[self.run.job.id]
            self.run = None
            for member in self.members.values():
                member.leave_job()

    def _order_weights(self, now: float) -> None:
        """Order the newest weights for the workers, and tell a plane without tensors of the job they belong to."""
        if self.tiers == 3:
            self._pass_job()
        if self.run is not None:
            send_weights(self.run, now)

    def _pass_job(self) -> None:
        run = self.run if self.run is not None and self.run.progress.elements else None
        passed = None if run is None else (run.job.id, run.progress.elements)
        if passed == self._passed:
            return
        self._passed = passed
        if run is None:
            self._out.put(plane.PassJob())
            return
        self._out.put(
            plane.PassJob(
                job=run.job.id,
                elements=run.progress.elements,
                gradients=run.plan.wire.gradients,
                weights=run.plan.wire.weights,
                pieces=run.plan.stages > 1,
            )
        )

    def _take_effects(self, clock: Clock) -> list[Effect]:
        """Return the effects, with the end time set in the records of jobs that have ended."""
        effects = self._out.take()
        for effect in effects:
            if isinstance(effect, SaveJob | Note) and effect.job.state not in (QUEUED, RUNNING):
                effect.job.ended_seconds = effect.job.ended_seconds or clock.unix_seconds
        return effects

    # ---- workers ----

    def _worker_connected(self, event: WorkerConnected, now: float) -> None:
        hello = event.hello
        refusal = check_identity(
            hello, members=self.members.values(), now=now, silent_seconds=self.timeouts.silent
        )
        if refusal is None and len(self.members) >= MAX_WORKERS:
            refusal = Refusal(
                f"{MAX_WORKERS} workers are connected, the most that an aggregator takes; stop another one"
            )
        if refusal is not None:
            self._out.put(CloseWorker(event.session, str(refusal)))
            return
        for old in [each for each in self.members.values() if each.name == hello.name]:
            self._close(old, "replaced by a newer connection of the same worker", now)
        member = Member(
            event.session,
            hello.name,
            hello.incarnation,
            now,
            connected_seconds=now,
            voice=event.voice,
            pipeline_address=event.pipeline_address,
        )
        if hello.stages:
            member.brought = hello.job, StageRun(hello.first_stage, hello.stages)
        self.members[event.session] = member
        self._out.put(
            ToWorker(event.session, pb.Welcome(name=self.name, heartbeat_seconds=self.heartbeat_seconds))
        )
        if self.run is not None:
            self.run.connected(member, hello, now)

    def _data_stream_opened(self, session: int, now: float) -> None:
        member = self.members.get(session)
        if member is None:
            return
        member.has_data_stream = True
        if self.run is not None:
            self.run.rows.settle(now)
            self.run.dispatch(now)

    def _close(self, member: Member, reason: str, now: float) -> None:
        self._out.put(CloseWorker(member.session, reason))
        self._worker_lost(member.session, reason, now)

    def _worker_lost(self, session: int, reason: str, now: float) -> None:
        member = self.members.pop(session, None)
        if member is not None and self.run is not None and not self.run.ended:
            self.run.lost(member, reason, now)

    def _chunk_arrived(self, event: ChunkArrived, now: float) -> None:
        member = self.members.get(event.session)
        if member is None or self.run is None or not self._concerns_run(event.header.job):
            self._out.put(discard_piece(event.header, event.arrival))
            return
        refusal = self.run.chunk_arrived(member, event, now)
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
        if self.run is None or self.run.ended or body.job != self.run.job.id or member.refusal is not None:
            return
        take_report(self.run, member, body, now)

    def _ticked(self, now: float) -> None:
        for member in list(self.members.values()):
            silent = now - member.heard_seconds
            if silent > self.timeouts.silent:
                self._close(member, f"silent for {silent:.1f} s", now)
        if self.run is not None and not self.run.ended:
            self.run.tick(now)
            self.run.job.waiting = self._describe_lack(now) if not self.run.ended else ""
        self._optimizer_wait.update(self._owed_by_optimizer(), now)

    # ---- the optimizer ----

    def _from_optimizer(self, event: FromOptimizer, now: float) -> None:
        body = event.body
        if isinstance(body, pb.Hello | pb.Heartbeat):
            return
        if self.run is None or self.run.job.id != body.job:
            return
        take_optimizer_report(self.run, self.optimizer or "", body, now)

    def _open_job(self) -> None:
        """Open the running job at the optimizer, if it is connected."""
        if self.optimizer and self.run is not None:
            self.run.open()

    # ---- jobs ----

    def _cancel(self, event: CancelRequested) -> None:
        if self.run is not None and self.run.job.id == event.job:
            self.run.end(CANCELLED, "cancelled by request", checkpoint=not event.now)
        else:
            self.jobs.cancel(event.job)

    def _trust(self, event: TrustRequested, now: float) -> None:
        if self.run is not None and self.run.job.id == event.job:
            self.run.trust(event.worker, now)
        elif event.job in self.jobs.records:
            trust(self.jobs.records[event.job].job, event.worker)  # it was running, and waits for its start

    def _stop(self) -> None:
        """Note that this process stops because it was asked to, and not because of the job that it runs."""
        if self.run is not None and not self.run.ended:
            take_back_start(self.run.job)
            self.run.report.save()

    def _start_next_job(self, now: float, clock: Clock) -> None:
        """Start the next job, unless one is running or the next one must wait."""
        if self.run is not None or self.check_under_way:
            return
        found = self.jobs.take_next(self._own_clock.lived_seconds(clock.monotonic_seconds))
        if found is not None:
            self._start(*found, now, clock.unix_seconds)

    def _start(self, record: Record, plan: JobPlan, now: float, unix_seconds: float) -> None:
        count_start(record.job)
        if not record.job.started_seconds:
            record.job.started_seconds = unix_seconds
        self.run = RunningJob(
            record,
            plan,
            epoch=self.epoch,
            timeouts=self.timeouts,
            tiers=self.tiers,
            shards=self._shards,
            new_lease=self._new_lease,
            members=self.members,
            out=self._out,
            now=now,
        )
        self.run.report.begin()
        self.run.rows.join(self.members.values(), now)
        self._open_job()

    def _new_lease(self) -> int:
        self._last_lease += 1
        return self._last_lease
