"""Progress of a running job: the version of its newest weights, its phase, and the work that follows from both."""

from __future__ import annotations

from collections.abc import Callable

from aggregator.core.events import Outbox, ToOptimizer
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.deaths import ComputeDeaths
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.claims import is_void
from aggregator.core.membership.members import total_peak_flops
from aggregator.core.membership.quorum import Quorum
from aggregator.core.sums.chunk_router import ChunkRouter
from aggregator.core.sums.step_sum import StepSum
from aggregator.core.verification.opinions import sample_micro_batches
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Job
from services.protocol.phases import JobPhase
from services.protocol.plan import JobPlan
from services.protocol.versions import Version
from services.tensors.chunk_set import ChunkSet
from services.tensors.layout import chunk_count


class JobProgress:
    """The version of a job's newest weights, and its phase.

    Args:
        job: the job's record, updated in place.
        plan: what the aggregator needs to know of the job's configuration.
        shards: the number of processes that share the chunks.
        lease_book: the leases of the job's workers, which get the work of each version.
        router: the job's chunks on their way.
        report: saves the job's record and publishes events.
        quorum: whether the job has enough workers.
        deaths: the deaths of compute processes, of which those before a step count no more.
        out: takes the effects.
        finish: called when the job's last checkpoint is on disk.

    Attributes:
        elements: the number of elements in the layout; 0 before it is known.
        chunks: the number of chunks in the layout; 0 before it is known.
        version: the version of the newest weights; None before there are any.
    """

    def __init__(
        self,
        job: Job,
        plan: JobPlan,
        *,
        shards: int,
        lease_book: LeaseBook,
        router: ChunkRouter,
        report: JobReport,
        quorum: Quorum,
        deaths: ComputeDeaths,
        out: Outbox,
        finish: Callable[[], None],
    ) -> None:
        self._job = job
        self._plan = plan
        self._shards = shards
        self._lease_book = lease_book
        self._router = router
        self._report = report
        self._quorum = quorum
        self._deaths = deaths
        self._out = out
        self._finish = finish
        self.elements = 0
        self.chunks = 0
        self.version: Version | None = None
        self._checkpoint: Version | None = None
        self._evaluation_batches = plan.evaluation_batches.known
        self._tokens_per_micro_batch = 0
        self._set_phase(JobPhase.INITIALISE)

    @property
    def phase(self) -> JobPhase | None:
        """The phase in the job's record; None once the job is over."""
        return JobPhase(self._job.phase) if self._job.phase else None

    def _set_phase(self, phase: JobPhase) -> None:
        self._job.phase = phase.value

    def learn_layout(self, elements: int) -> None:
        """Take the number of elements in the layout from the optimizer."""
        self.elements, self.chunks = elements, chunk_count(elements)
        self._job.parameters = elements

    def learn_batches(self, ready: pb.Ready, now: float) -> None:
        """Take the sizes of batches from a worker that has read the corpus; begin an evaluation that waits for them."""
        if ready.first_stage:
            return  # only the first of a row's workers must have read it
        self._tokens_per_micro_batch = ready.tokens_per_micro_batch
        self._job.flops_per_token = ready.flops_per_token
        # A claim that has ended may have said another number.
        if self._evaluation_batches != ready.evaluation_batches:
            self._evaluation_batches = ready.evaluation_batches
            self._report.learn_batches(ready.evaluation_batches)
            if self.phase is JobPhase.EVALUATE:
                self.next_phase(now)

    def forget_batches(self) -> None:
        """Forget the weights, and the sizes of batches, which workers have told whose claim has ended."""
        self._evaluation_batches, self._tokens_per_micro_batch = self._plan.evaluation_batches.known, 0
        self.forget_weights()

    def forget_weights(self) -> None:
        """Return to the phase before there are any weights."""
        self.version = None
        self._lease_book.clear_step()
        self._set_phase(JobPhase.INITIALISE)
        self._router.weights.begin(None, 0)
        self._router.drop_all()

    def continue_at(self, version: Version, missing: ChunkSet, now: float) -> None:
        """Continue at the optimizer's version; `missing` are the chunks of the step's sum that it lacks."""
        if self.version is not None and version == self.version.following:
            self.advance(now)  # the link broke before its COMMIT arrived
        elif version != self.version:
            self._enter(version, now)
        if self.phase is None:
            return  # the job is over
        if self._lease_book.step_sum is not None:
            self._lease_book.reconcile(self._lease_book.step_sum, missing)
        self._router.weights.begin(version, self.elements)
        # With all weights of this version, ask for the next one's, which come as soon as they exist.
        weights = self._router.weights
        wanted = version.following if weights.receives and weights.complete else version
        request = pb.SendWeights(job=self._job.id, generation=wanted.generation, step=wanted.step)
        self._out.put(ToOptimizer(request))

    def _enter(self, version: Version, now: float) -> None:
        """Continue at a version and drop the work of another one."""
        self._report.enter(version)
        self.version = version
        self._lease_book.initialisation = None
        self._router.drop_all()
        self.next_phase(now)

    def advance(self, now: float) -> None:
        """Go on to the next step, since the optimizer has committed this one."""
        assert self.version is not None
        self.version = self.version.following
        self._deaths.note_commit()
        able = self._lease_book.able_rows()
        self._report.advance(
            self.version,
            self._lease_book.step_sum,
            tokens=self._tokens_per_micro_batch * self._plan.micro_batches,
            samples=self._plan.batch_size * self._plan.micro_batches,
            peak_flops=total_peak_flops([each for row in able for each in row.workers]),
            waited_for=self._lease_book.find_last(),
            now=now,
        )
        self._router.weights.begin(self.version, self.elements)
        self._router.drop_all()
        self.next_phase(now)

    def next_phase(self, now: float) -> None:
        """Choose what to do with the weights of the current version."""
        assert self.version is not None
        self._lease_book.clear_step()
        step = self.version.step
        evaluation_due = self._plan.evaluates_at(step) and self._report.evaluated_step != step
        if evaluation_due:
            self._set_phase(JobPhase.EVALUATE)
            if self._evaluation_batches is not None:
                self._lease_book.evaluation = Evaluation(self._evaluation_batches)
                self._report.note_evaluated(0, self._evaluation_batches, now)
        elif step >= self._plan.steps:
            self._set_phase(JobPhase.CHECKPOINT)
            self._finish_if_saved()
        else:
            self._set_phase(JobPhase.TRAIN)
            count, factor = self._plan.micro_batches, self._shards * self._plan.wire.gradients_per_float32
            checked = sample_micro_batches(self._job.id, step, count, self._plan.verify_fraction)
            step_sum = StepSum(self.version, count, self.chunks, now, factor, checked)
            self._lease_book.begin_step(step_sum, now, plan=self._quorum.is_reached(now))

    def checkpoint_written(self, written: pb.CheckpointWritten) -> None:
        """Record a checkpoint that is on disk, and finish the job if it is the last one."""
        if is_void(self._job, Version(written.generation, written.step)):
            return  # it was declared so while it was written
        self._checkpoint = Version(written.generation, written.step)
        self._report.record_checkpoint(written)
        self._finish_if_saved()

    def _finish_if_saved(self) -> None:
        saved = self._checkpoint
        if self.phase is JobPhase.CHECKPOINT and saved is not None and saved.step == self._plan.steps:
            self._finish()
