"""A job that was started: the parts of its run, how the optimizer opens it, and how it ends or stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from aggregator.core.events import Outbox, ToOptimizer
from aggregator.core.job_report import PAUSED_BY_REQUEST, JobReport, Record, pause_job, resume_job
from aggregator.core.leasing.deaths import ComputeDeaths
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.leasing.results import LeaseResults
from aggregator.core.membership.admission import Admission
from aggregator.core.membership.claims import Claims, void_of
from aggregator.core.membership.code_pin import CodePin
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.membership.quorum import Quorum
from aggregator.core.printed_lines import PrintedLines
from aggregator.core.progress import JobProgress
from aggregator.core.rows.job_rows import JobRows
from aggregator.core.rows.pipeline_rows import PipelineRows
from aggregator.core.rows.row_table import RowTable
from aggregator.core.setting_aside import PROBATION_SECONDS, count_start, take_back_start
from aggregator.core.sums.chunk_router import ChunkRouter
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.jobs_pb2 import PAUSED, RUNNING, SUCCEEDED, JobState
from services.printable import counted
from services.protocol.phases import JobPhase
from services.protocol.plan import JobPlan
from services.protocol.versions import Version
from services.timeouts import Timeouts


class Stop(NamedTuple):
    """The end of a job for now.

    Attributes:
        state: the state that it gets.
        detail: why it stops.
        version: the version at which that was decided.
        deadline_seconds: until when the last COMMIT is waited for.
    """

    state: JobState
    detail: str
    version: Version | None
    deadline_seconds: float


class StartedJob:
    """The run of one job.

    Args:
        record: the job; its `job` is updated in place.
        plan: what the aggregator needs to know of the job's configuration.
        epoch: the aggregator's epoch.
        timeouts: the cluster's timeouts.
        tiers: 2 if the optimizer runs in this process, else 3.
        shards: the number of processes that share the chunks.
        new_lease: returns the id of a lease that was never used before.
        has_others: returns whether there are workers that don't serve a job, and may fit it.
        worker_seconds: returns the time of a job's workers up to now, by what they did with it.
        out: takes the effects.
        now: the time, on the monotonic clock.

    Attributes:
        job: the job's record.
        plan: what the aggregator needs to know of the job's configuration.
        members: the workers that serve it, by session.
        timeouts: the cluster's timeouts.
        job_members: admits workers to the job and refuses them.
        report: saves the job's record and publishes events.
        quorum: whether the job has enough workers.
        lease_book: the leases of its rows.
        lease_results: what became of these leases.
        rows: its workers, in the rows that hold these leases.
        router: its chunks on their way.
        printed: lines that its code prints.
        progress: its version, its phase and its layout's size.
        admission: what a worker must say to be admitted.
        orders: sends orders to workers and their rows.
        found_faulty: workers that it has found faulty, which the aggregator's core takes from here for other jobs.
        opened_void_generation: last generation that the optimizer was told is void; 0 for none.
        optimizer_state: what the optimizer said last; STATE_UNSPECIFIED until it answers Open.
        lacks_space: whether the optimizer waits for disk space before it can go on with the job.
        stops: how the job ends once its workers have left; None if it goes on.
    """

    def __init__(
        self,
        record: Record,
        plan: JobPlan,
        *,
        epoch: int,
        timeouts: Timeouts,
        tiers: int,
        shards: int,
        new_lease: Callable[[], int],
        has_others: Callable[[str], bool],
        worker_seconds: Callable[[str, float], Mapping[str, float]],
        out: Outbox,
        now: float,
    ) -> None:
        self.job = job = record.job
        self.plan = plan
        self.members: dict[int, Member] = {}
        members = self.members
        self.admission = Admission(job, exact=plan.exact, features=plan.features, timeouts=timeouts, now=now)
        self.report = JobReport(job, record.spec_json, plan, partial(worker_seconds, job.id), out)
        self.printed = PrintedLines(members, self.report)
        self.quorum = Quorum(
            plan.min_workers, members, self.admission, lambda text: self.report.note("member", text)
        )
        self.router = ChunkRouter(job.id, epoch, plan.wire, out, receives_weights=tiers == 3)
        table = RowTable(job.id, epoch, members, self.router.drop_pieces, out, next_row=record.next_row)
        self.orders = WorkerOrders(job.id, self._new_lease, table.send, out)
        self.lease_book = LeaseBook(
            timeouts, table.rows, self.orders, self.report, out, checked=bool(plan.verify_fraction)
        )
        self.exclusions = Exclusions(job)
        deaths = ComputeDeaths(job.id)
        self.code_pin = CodePin(job, members, timeouts.comeback)
        self.job_members = JobMembers(
            members, self.admission, self.exclusions, deaths, self.orders, self.report
        )
        self.lease_results = LeaseResults(job, self.lease_book, self.job_members)
        self.rows = JobRows(table, members, self.job_members, self.lease_book)
        if plan.stages > 1:
            self.rows = PipelineRows(
                plan,
                table,
                members,
                self.job_members,
                self.lease_book,
                self.router,
                self.report,
                timeouts=timeouts,
            )
        self.optimizer_state = pb.OptimizerStatus.STATE_UNSPECIFIED
        self.lacks_space = False
        self.stops: Stop | None = None
        self.passed_elements = 0  # that a plane without tensors was told of
        self.found_faulty: list[str] = []
        self._began_seconds = now
        self._start_counts = (
            True  # whether the record says that the job was started, and the aggregator may die of it
        )
        self._draw_lease = new_lease
        self._has_others = has_others
        self._leased = False
        self.opened_void_generation = job.void_generation  # what the optimizer was told last
        self.timeouts = timeouts
        self.out = out
        job.state, job.steps = RUNNING, plan.steps
        self.progress = JobProgress(
            job,
            plan,
            shards=shards,
            lease_book=self.lease_book,
            router=self.router,
            report=self.report,
            quorum=self.quorum,
            deaths=deaths,
            out=out,
            finish=lambda: self.end(SUCCEEDED, f"finished {counted(plan.steps, 'step')}"),
        )

    # ---- the job ----

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return bool(self.job.state != RUNNING)

    @property
    def claims(self) -> Claims:
        """What its workers say of it."""
        return self.admission.claims

    def _new_lease(self) -> int:
        self._leased = True
        if not self._start_counts:
            self._start_counts = True
            count_start(self.job)
            self.report.save()
        return self._draw_lease()

    def _take_back_idle_start(self, now: float) -> None:
        """Note that the aggregator has not died of the job, which has no workers: it is started when it gets some."""
        if self._start_counts and not self._leased and now > self._began_seconds + PROBATION_SECONDS:
            self._start_counts = False
            take_back_start(self.job)
            self.report.save()

    def end(self, state: JobState, detail: str, *, checkpoint: bool = False) -> None:
        """End the job and have workers and optimizer drop it, perhaps with a checkpoint of its last COMMIT."""
        self.report.end(state, detail)
        for session in self.members:
            self.orders.leave_for_good(session, detail, succeeded=state == SUCCEEDED)
        self.close(checkpoint=checkpoint)

    def stop(self, state: JobState, detail: str, now: float) -> None:
        """End the job for now, once its workers have left."""
        self.stops = Stop(state, detail, self.progress.version, now + self.timeouts.stall)

    def pause(self, now: float) -> None:
        """Have the job stop after the COMMIT of the step that is being computed."""
        if not (self.job.pausing or self.ended):
            pause_job(self.job)
            self.stop(PAUSED, PAUSED_BY_REQUEST, now)
            self.report.note("state", "pauses after the step that is being computed")

    def resume(self) -> None:
        """Go on with a job that was paused and has not stopped yet."""
        if self.job.pausing and not self.ended:
            resume_job(self.job)
            self.stops = None
            self.report.note("state", "goes on")

    def end_if_left(self, now: float) -> None:
        """End the job if it is to stop, its workers have left, and the optimizer has told of its last COMMIT.

        It stays open at the optimizer, which saves its weights.
        """
        stop, version = self.stops, self.progress.version
        if stop is None or self.members or self.ended or self.progress.phase is JobPhase.CHECKPOINT:
            return
        made_since = version is not None and version != stop.version and self.report.awaits_commit(version)
        if made_since and now < stop.deadline_seconds:
            return  # its weights have come before it
        take_back_start(self.job)
        self.report.end(stop.state, stop.detail)
        self.out.put(ToOptimizer(pb.SaveCheckpoint(job=self.job.id)))
        self._drop_chunks()

    def note_status(self, version: Version) -> None:
        """Stop without the COMMIT that led to the optimizer's version: it would have come before, so it got lost."""
        if self.stops is not None:
            self.stops = self.stops._replace(version=version)

    def close(self, *, checkpoint: bool) -> None:
        """Have the optimizer close the job, and planes forget it."""
        self.out.put(ToOptimizer(pb.Close(job=self.job.id, checkpoint=checkpoint)))
        self._drop_chunks()

    def _drop_chunks(self) -> None:
        """Have planes forget the job, but for its tensors."""
        self.router.drop_all()
        if self.passed_elements:
            self.out.put(plane.PassJob(job=self.job.id))

    # ---- at the optimizer ----

    def open(self) -> None:
        """Ask the optimizer, whose link has come up, which version it has."""
        self.optimizer_state = pb.OptimizerStatus.STATE_UNSPECIFIED
        self.opened_void_generation = self.job.void_generation
        void = void_of(self.job) + self.code_pin.void_checkpoints()
        if self.plan.on_faulty == "go_back":
            void += self.exclusions.void_checkpoints()
        request = pb.Open(
            job=self.job.id, spec_json=self.report.spec_json, generation=self.job.generation, void=void
        )
        self.out.put(ToOptimizer(request))

    def start_over(self, version: Version) -> None:
        """Have the optimizer go back, or only drop the staged sum; its next status has a later generation."""
        goes_back = self.plan.on_faulty == "go_back" and self.exclusions.is_void(version)
        if goes_back or self.code_pin.is_void(version):
            self.open()
        else:
            self.out.put(ToOptimizer(pb.StartOver(job=self.job.id, generation=version.generation)))

    def is_void(self, version: Version) -> bool:
        """Return whether weights were declared void, since a worker was found faulty or the code was changed."""
        return self.exclusions.is_void(version) or self.code_pin.is_void(version)
