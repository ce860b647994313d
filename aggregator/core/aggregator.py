"""The aggregator's mind: jobs, their queue, and the workers. Pure: no sockets, clocks, threads or files.

`handle` takes one input and returns the effects that the service carries out, in order. The running job's steps are in
run.py; here is what outlives a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aggregator.core.events import (
    CancelAsked,
    ChunkArrived,
    CloseWorker,
    Effect,
    ExchangeOpened,
    FromOptimizer,
    FromWorker,
    Input,
    Note,
    OptimizerConnected,
    OptimizerLost,
    Outbox,
    SaveJob,
    Submitted,
    Ticked,
    ToWorker,
    WeightsArrived,
    WorkerConnected,
    WorkerLost,
)
from aggregator.core.job_report import name_checkpoint
from aggregator.core.membership.members import Member
from aggregator.core.running_job import RunningJob
from aggregator.core.waits import OptimizerWait
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, ClusterStatus, Job, Wait
from protos.jobs_pb2 import Member as MemberStatus
from protos.tensors_pb2 import ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.timeouts import Timeouts


class Clock(NamedTuple):
    """The time of an input: monotonic for durations, Unix time for people."""

    monotonic_seconds: float
    unix_seconds: float


@dataclass
class Record:
    """A job as it is kept on disk."""

    job: Job
    spec_json: str
    plan: JobPlan
    fingerprint: dict[str, str]


class AggregatorCore:
    """The state machine of one aggregator epoch."""

    def __init__(
        self,
        *,
        name: str,
        epoch: int,
        records: Iterable[Record],
        heartbeat_seconds: float,
        tiers: int,
        lanes: int = 1,
        timeout_overrides: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.heartbeat_seconds = heartbeat_seconds
        self.timeouts = Timeouts.from_heartbeat(heartbeat_seconds, timeout_overrides)
        self.tiers = tiers
        self._lanes = lanes
        self.records = {record.job.id: record for record in records}
        self.members: dict[int, Member] = {}
        self.run: RunningJob | None = None
        self.optimizer = ""
        self._why_no_optimizer = "not connected yet"
        self._optimizer_wait = OptimizerWait()
        self._last_lease = epoch << 32  # no lease of another epoch has the same id
        self._looked_seconds: float | None = None
        self._absent_seconds = 0.0
        self._out = Outbox()

    # ---- what the service asks ----

    def next_weights(self, session: int) -> ChunkHeader | None:
        """The header of the next chunk of weights for a worker, counted as sent; None: nothing for now."""
        member = self.members.get(session)
        if self.run is None or member is None:
            return None
        return self.run.router.next_weights(member)

    def expected_elements(self, job: str) -> int | None:
        """Elements of the running job's layout; None: this job is not running or its layout not known."""
        return self.run.elements or None if self.run is not None and self.run.job.id == job else None

    def wire_type(self, kind: ChunkKind) -> DType:
        """How chunks of this kind travel between this aggregator and its workers; of the running job."""
        assert self.run is not None
        return self.run.plan.wire.dtype_of(kind)

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""
        if header.epoch != self.epoch:
            return Refusal(f"its epoch is {header.epoch}, this aggregator's is {self.epoch}")
        if self.run is None or self.run.job.id != header.job:
            running = self.run.job.id if self.run else "none"
            return Refusal(f"its job is {header.job!r}, the running job is {running}")
        return self.run.lease_book.check_chunk(session, header)

    def status(self, now: float) -> ClusterStatus:
        """The cluster as people see it."""
        own = self._own_time(now)
        status = ClusterStatus(
            epoch=self.epoch,
            tiers=self.tiers,
            optimizer=self.optimizer or self._why_no_optimizer,
            running_job=self.run.job.id if self.run else "",
            waiting=self.waits_for(now),
            waits=self.waits(now),
        )
        for member in self.members.values():
            if self.run is None:
                doing = "connected"
            else:
                doing = "computing" if self.run.lease_book.is_computing(member) else member.describe()
            status.workers.append(
                MemberStatus(
                    name=member.name,
                    incarnation=member.incarnation,
                    state=doing,
                    detail=member.refused or member.unfit,
                    generation=member.holds.generation if member.holds else 0,
                    step=member.holds.step if member.holds else 0,
                    seconds_since_heard=own - member.heard_seconds,
                    micro_batches_per_second=member.speed,
                )
            )
        return status

    def waits(self, now: float) -> list[Wait]:
        """What workers and the optimizer owe the running job, the longest wait first."""
        if self.run is None:
            return []
        own = self._own_time(now)
        waits = self._optimizer_wait.waits(self._owed_by_optimizer(), own) + self.run.lease_book.waits(own)
        return sorted(waits, key=lambda wait: -wait.seconds)

    def _owed_by_optimizer(self) -> Wait | None:
        """What the optimizer owes the running job, without the time; None: nothing."""
        if self.run is None:
            return None
        what = self.run.owed_by_optimizer() if self.optimizer else f"a connection: {self._why_no_optimizer}"
        if not what:
            return None
        job = self.run.job
        return Wait(
            role="optimizer", peer=self.optimizer or "optimizer", job=job.id, step=job.step, what=what
        )

    def waits_for(self, now: float) -> str:
        """What the running job waits for; empty if there is none."""
        if self.run is None:
            return ""
        if not self.optimizer:
            return f"the optimizer: {self._why_no_optimizer}"
        return self.run.waits_for(self._own_time(now))

    # ---- inputs ----

    def handle(self, event: Input, clock: Clock) -> list[Effect]:
        """Take one input; return what is to be done, in order."""
        self._excuse_own_absence(clock.monotonic_seconds)
        now = self._own_time(clock.monotonic_seconds)
        match event:
            case ChunkArrived():
                member = self.members.get(event.session)
                if self._concerns_run(event.header.job) and member is not None and self.run is not None:
                    self.run.chunk_arrived(member, event.header, now, in_place=event.in_place)
            case WeightsArrived():
                if self._concerns_run(event.header.job) and self.run is not None:
                    self.run.weights_arrived(event.header, now)
            case FromWorker():
                self._from_worker(event, now)
            case FromOptimizer():
                self._from_optimizer(event, now)
            case WorkerConnected():
                self._worker_connected(event, now)
            case ExchangeOpened():
                self._exchange_opened(event.session, now)
            case WorkerLost():
                self._worker_lost(event.session, event.reason, now)
            case OptimizerConnected():
                self.optimizer = event.name
                if self.run is not None:
                    self.run.open()
            case OptimizerLost():
                self.optimizer, self._why_no_optimizer = "", event.reason
            case Submitted():
                self._submitted(event)
            case CancelAsked():
                self._cancel(event.job)
            case Ticked():
                self._looked_seconds = clock.monotonic_seconds
                self._ticked(now)
        self._retire()
        self._next_job(now, clock.unix_seconds)
        return self._stamped(clock)

    def _concerns_run(self, job: str) -> bool:
        return self.run is not None and self.run.job.id == job

    def _retire(self) -> None:
        """Let go of a job that has ended."""
        if self.run is not None and self.run.ended:
            self.run = None
            for member in self.members.values():
                member.leave_job()

    def _stamped(self, clock: Clock) -> list[Effect]:
        """The effects, with the time at which a job ended."""
        effects = self._out.take()
        for effect in effects:
            if isinstance(effect, SaveJob | Note) and effect.job.state not in (QUEUED, RUNNING):
                record = self.records[effect.job.id].job
                record.ended_seconds = effect.job.ended_seconds = record.ended_seconds or clock.unix_seconds
        return effects

    # ---- workers ----

    def _worker_connected(self, event: WorkerConnected, now: float) -> None:
        hello = event.hello
        reason = self._why_not(hello, now)
        if reason:
            self._out.put(CloseWorker(event.session, reason))
            return
        for old in [each for each in self.members.values() if each.name == hello.name]:
            self._close(old, "replaced by a newer connection of the same worker", now)
        member = Member(event.session, hello.name, hello.incarnation, now)
        self.members[event.session] = member
        self._out.put(
            ToWorker(event.session, pb.Welcome(name=self.name, heartbeat_seconds=self.heartbeat_seconds))
        )
        if self.run is not None:
            self.run.join(member)

    def _why_not(self, hello: pb.Hello, now: float) -> str:
        """Why this worker is turned away; empty if it is welcome."""
        if hello.protocol != PROTOCOL_VERSION:
            return (
                f"worker {hello.name} speaks protocol {hello.protocol}, this aggregator {PROTOCOL_VERSION}; "
                "install the same version of Tiermesh on both"
            )
        if hello.role != "worker":
            return f"{hello.name} says that it is a {hello.role!r}; only workers attend an aggregator"
        if hello.epoch_seen > self.epoch:
            return (
                f"worker {hello.name} has obeyed epoch {hello.epoch_seen}, this aggregator is of epoch "
                f"{self.epoch}: a newer one has taken over; stop this one"
            )
        if (hello.shard_index, hello.shard_count) != (0, 1):
            return f"worker {hello.name} asks for shard {hello.shard_index} of {hello.shard_count}; expected 0 of 1"
        for other in self.members.values():
            silent = now - other.heard_seconds
            namesake = other.name == hello.name and other.incarnation != hello.incarnation
            if namesake and silent < self.timeouts.silent:
                return (
                    f"a worker named {hello.name} is connected already (heard {silent:.1f} s ago); "
                    "give this one another --name"
                )
        return ""

    def _exchange_opened(self, session: int, now: float) -> None:
        member = self.members.get(session)
        if member is None:
            return
        member.exchange = True
        if self.run is not None:
            self.run.dispatch(now)

    def _close(self, member: Member, reason: str, now: float) -> None:
        self._out.put(CloseWorker(member.session, reason))
        self._worker_lost(member.session, reason, now)

    def _worker_lost(self, session: int, reason: str, now: float) -> None:
        member = self.members.pop(session, None)
        if member is not None and self.run is not None and not self.run.ended:
            self.run.lost(member, reason, now)

    def _from_worker(self, event: FromWorker, now: float) -> None:
        member = self.members.get(event.session)
        if member is None:
            return
        member.heard_seconds = now
        body = event.body
        if isinstance(body, pb.Hello | pb.Heartbeat) or event.epoch != self.epoch:
            return
        if self.run is None or self.run.ended or body.job != self.run.job.id or member.refused:
            return
        match body:
            case pb.Ready():
                self.run.ready(member, body, now)
            case pb.WeightsLoaded():
                self.run.weights_loaded(member, body, now)
            case pb.Computed():
                self.run.computed(member, body, now)
            case pb.Evaluated():
                self.run.evaluated(member, body, now)
            case pb.Description():
                self.run.description(member, body)
            case pb.Failure():
                if body.retries:
                    self.run.unfit(member, body.reason, now)
                elif body.lease:
                    self.run.failed(member, body, now)
                else:
                    self.run.refuse(member, body.reason, now)
                if not self.run.ended:
                    self.run.dispatch(now)

    def _excuse_own_absence(self, monotonic_seconds: float) -> None:
        """Whoever seems silent or slow because this process was stopped is not: what they sent waits to be read."""
        looked = self._looked_seconds
        if looked is not None and monotonic_seconds - looked > self.heartbeat_seconds:
            self._absent_seconds += monotonic_seconds - looked
            self._looked_seconds = monotonic_seconds

    def _own_time(self, monotonic_seconds: float) -> float:
        """The time by which everybody else is measured: it stands still while this process is stopped."""
        return monotonic_seconds - self._absent_seconds

    def _ticked(self, now: float) -> None:
        for member in list(self.members.values()):
            silent = now - member.heard_seconds
            if silent > self.timeouts.silent:
                self._close(member, f"silent for {silent:.1f} s", now)
        if self.run is not None and not self.run.ended:
            self.run.tick(now)
        self._optimizer_wait.look(self._owed_by_optimizer(), now)

    # ---- the optimizer ----

    def _from_optimizer(self, event: FromOptimizer, now: float) -> None:
        body = event.body
        if isinstance(body, pb.Hello | pb.Heartbeat):
            return
        if self.run is None or self.run.job.id != body.job:
            if isinstance(body, pb.CheckpointWritten):
                self._written_late(body)
            return
        match body:
            case pb.OptimizerStatus():
                self.run.optimizer_status(body, now)
            case pb.Commit():
                self.run.commit(body, now)
            case pb.CheckpointWritten():
                self.run.checkpoint_written(body)
            case pb.CheckpointMissed():
                self.run.report.checkpoint_missed(body)
            case pb.Failure():
                self.run.end(FAILED, f"optimizer {self.optimizer}: {body.reason}")

    def _written_late(self, written: pb.CheckpointWritten) -> None:
        """A job had ended while this was being written; the one that its record names may be gone by now."""
        record = self.records.get(written.job)
        if record is None or record.job.state in (QUEUED, RUNNING):
            return
        job = record.job
        if not job.checkpoint or written.step > job.checkpoint_step:
            name_checkpoint(job, written)
            self._out.put(SaveJob(_copy(job), record.spec_json, record.fingerprint))
            self._out.put(
                Note("checkpoint", f"checkpoint of step {written.step}: {written.path}", _copy(job))
            )

    # ---- jobs ----

    def _submitted(self, event: Submitted) -> None:
        event.job.state, event.job.steps = QUEUED, event.plan.steps
        self.records[event.job.id] = Record(event.job, event.spec_json, event.plan, {})
        self._out.put(SaveJob(_copy(event.job), event.spec_json, {}))
        self._out.put(Note("state", f"queued: {event.job.name}", _copy(event.job)))

    def _cancel(self, job: str) -> None:
        if self.run is not None and self.run.job.id == job:
            self.run.end(CANCELLED, "cancelled by request")
            return
        record = self.records.get(job)
        if record is not None and record.job.state == QUEUED:
            record.job.state, record.job.detail = CANCELLED, "cancelled by request while queued"
            self._out.put(SaveJob(_copy(record.job), record.spec_json, record.fingerprint))
            self._out.put(Note("state", "cancelled", _copy(record.job)))

    def _next_job(self, now: float, unix_seconds: float) -> None:
        """Start what was running when the previous epoch ended, else the oldest job in the queue."""
        if self.run is not None:
            return
        waiting = [each for each in self.records.values() if each.job.state in (RUNNING, QUEUED)]
        if not waiting:
            return
        record = min(waiting, key=lambda each: each.job.state != RUNNING)
        if not record.job.started_seconds:
            record.job.started_seconds = unix_seconds
        self.run = RunningJob(
            record.job,
            record.spec_json,
            record.plan,
            record.fingerprint,
            epoch=self.epoch,
            timeouts=self.timeouts,
            lanes=self._lanes,
            new_lease=self._new_lease,
            members=self.members,
            out=self._out,
            now=now,
        )
        self.run.report.begun()
        for member in self.members.values():
            self.run.join(member)
        if self.optimizer:
            self.run.open()

    def _new_lease(self) -> int:
        self._last_lease += 1
        return self._last_lease


def _copy(job: Job) -> Job:
    copy = Job()
    copy.CopyFrom(job)
    return copy
