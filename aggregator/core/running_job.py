"""The running job's part of the aggregator's core: initialise, train, evaluate, checkpoint. Pure.

One step: workers are granted nodes of the reduction tree of (generation, step), as soon as its weights begin to stream
to them; their chunks are merged and passed on; the optimizer commits and its new weights come back; they are sent to
every worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aggregator.core.events import DropAll, Outbox, ToOptimizer
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import MOST_BATCHES, Evaluation
from aggregator.core.leasing.failures import MOST_FAILURES, FailedWork, LeaseFailures
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.admission import Admission
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.membership.members import Member
from aggregator.core.membership.quorum import Quorum
from aggregator.core.sums.chunk_router import ChunkRouter
from aggregator.core.sums.step_sum import StepSum
from aggregator.core.verification.checks import Finding
from aggregator.core.verification.opinions import sampled
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING, SUCCEEDED, Job, JobState
from protos.tensors_pb2 import INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.protocol.plan import JobPlan
from services.protocol.versions import Version
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import Layout
from services.timeouts import Timeouts


class RunningJob:
    """One running job."""

    def __init__(
        self,
        job: Job,
        spec_json: str,
        plan: JobPlan,
        fingerprint: Mapping[str, str],
        *,
        epoch: int,
        timeouts: Timeouts,
        lanes: int,
        new_lease: Callable[[], int],
        members: Mapping[int, Member],
        out: Outbox,
        now: float,
    ) -> None:
        self.job = job
        self.plan = plan
        self.admission = Admission(exact=plan.exact, fingerprint=fingerprint, timeouts=timeouts, now=now)
        self.report = JobReport(job, spec_json, self.admission, out)
        self.quorum = Quorum(
            plan.min_workers, members, self.admission, lambda text: self.report.note("member", text)
        )
        self.orders = WorkerOrders(job.id, new_lease, out)
        self.lease_book = LeaseBook(
            timeouts, members, self.orders, self.report, out, checked=bool(plan.verify_fraction)
        )
        self._failures = LeaseFailures()
        self._exclusions = Exclusions(job)
        self.router = ChunkRouter(job.id, epoch, plan.wire, out)
        self.elements = 0
        self.chunks = 0
        self.version: Version | None = None
        self.optimizer_state = pb.OptimizerStatus.STATE_UNSPECIFIED
        self._evaluation_batches: int | None = None
        self._checkpoint: Version | None = None
        self._tokens_per_micro_batch = 0
        self._members = members
        self._lanes = lanes
        self._out = out
        job.state, job.steps, job.phase = RUNNING, plan.steps, "initialise"

    # ---- the job ----

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return bool(self.job.state != RUNNING)

    def end(self, state: JobState, detail: str) -> None:
        """End the job; workers and optimizer drop it."""
        self.report.ended(state, detail)
        for session in self._members:
            self.orders.leave(session, detail)
        self._out.put(ToOptimizer(pb.Close(job=self.job.id)))
        self._out.put(DropAll())

    def waits_for(self, now: float) -> str:
        """What the job waits for, for people."""
        able = self.lease_book.able()
        if self.optimizer_state == pb.OptimizerStatus.STATE_UNSPECIFIED:
            return "the optimizer's answer"
        missed = f"; {self.job.detail}" if self.job.detail else ""
        if self.job.phase == "checkpoint":
            return f"the optimizer to write the checkpoint of step {self.job.step}{missed}"
        if short := self.quorum.waits_for(now):
            return short
        if self.job.phase == "train" and self.lease_book.sum is None:
            return f"the optimizer to start step {self.job.step} over"
        if not self._members:
            return "workers: none is connected"
        if not able:
            return "workers to build the job: " + ", ".join(
                f"{member.name} ({member.refused or member.unfit or member.describe()})"
                for member in self._members.values()
            )
        holders = sum(member.holds == self.version for member in able)
        hold = f"{holders} of {len(able)} workers hold its weights"
        return f"{self.job.phase} of step {self.job.step}; {hold}{missed}"

    # ---- the optimizer ----

    def owed_by_optimizer(self) -> str:
        """What the job waits for the optimizer to do, for people; empty: nothing."""
        if self.optimizer_state == pb.OptimizerStatus.STATE_UNSPECIFIED:
            return "an answer: where it stands"
        if self.job.phase == "checkpoint":
            return "the last checkpoint"
        if self.job.phase == "train" and self.lease_book.sum is None:
            return "to start over"
        if self.version is not None and self.router.weights.prefix < self.chunks:
            return "the weights"
        step_sum = self.lease_book.sum
        return "the update" if step_sum is not None and step_sum.coverage.complete else ""

    def open(self) -> None:
        """The link to the optimizer is up: ask where it stands."""
        self.optimizer_state = pb.OptimizerStatus.STATE_UNSPECIFIED
        void = self._exclusions.void_checkpoints() if self.plan.on_faulty == "go_back" else ()
        ask = pb.Open(
            job=self.job.id, spec_json=self.report.spec_json, generation=self.job.generation, void=void
        )
        self._out.put(ToOptimizer(ask))

    def optimizer_status(self, optimizer_status: pb.OptimizerStatus, now: float) -> None:
        """The optimizer says where it stands."""
        self.optimizer_state = optimizer_status.state
        if optimizer_status.state == pb.OptimizerStatus.EMPTY:
            self._forget_weights()
            self.lease_book.end_initialisation()
            self.admission.layout_hash = ""
            self.dispatch(now)
            return
        version = Version(optimizer_status.generation, optimizer_status.step)
        if optimizer_status.step > self.plan.steps:
            self.end(
                FAILED,
                f"the optimizer stands at step {optimizer_status.step}, the job has {self.plan.steps} steps",
            )
            return
        if (
            optimizer_status.state == pb.OptimizerStatus.TRAINING
            and self.version is not None
            and version < self.version
        ):
            return  # its weights, on the data stream, were faster
        try:
            layout = Layout.loads(optimizer_status.layout_json)
        except ValueError as error:
            self.end(FAILED, f"the optimizer's {error}; give all hosts the same version of Tiermesh")
            return
        self.admission.layout_hash, self.elements, self.chunks = layout.hash, layout.elements, layout.chunks
        for member in list(self._members.values()):
            other = member.ready and self.admission.why_not_layout(member.layout_hash)
            if other and not self.ended:
                self.refuse(member, other, now)
        if self.ended:
            return
        if optimizer_status.state == pb.OptimizerStatus.RECEIVING:
            self._forget_weights()
            current = self.lease_book.initialisation
            if current is not None and current.described:
                self.orders.resend(current.session, current.lease, optimizer_status.missing)
        elif self._is_void(version, optimizer_status.missing):
            self._start_over(version)
        else:
            self._continue_at(version, set(from_ranges(optimizer_status.missing, self.chunks)), now)
        if not self.ended:
            self.dispatch(now)

    def _forget_weights(self) -> None:
        self.version = None
        self.lease_book.forget_step()
        self.job.phase = "initialise"
        self.router.weights.begin(None, 0)
        self._out.put(DropAll())

    def _continue_at(self, version: Version, missing: set[int], now: float) -> None:
        """The optimizer holds the weights of a version, and lacks these chunks of the step's sum."""
        if self.version is not None and version == self.version.following:
            self._advance(now)  # the link broke under its COMMIT
        elif version != self.version:
            self._enter(version, now)
        if self.ended:
            return
        if self.lease_book.sum is not None:
            self.lease_book.reconcile(self.lease_book.sum, missing)
        self.router.weights.begin(version, self.elements)
        # Whoever has all weights of a version asks for those of the next, and gets them as soon as they are there.
        wanted = version.following if self.router.weights.prefix == self.chunks else version
        ask = pb.SendWeights(job=self.job.id, generation=wanted.generation, step=wanted.step)
        self._out.put(ToOptimizer(ask))

    def _enter(self, version: Version, now: float) -> None:
        """Continue at a version: whatever was under way for another one is void."""
        self.report.entered(version)
        self.version = version
        self.lease_book.initialisation = None
        self._out.put(DropAll())
        self._next_phase(now)

    def commit(self, commit: pb.Commit, now: float) -> None:
        """The optimizer decided a step."""
        decided = Version(commit.generation, commit.step)
        if self.version == decided:
            self._advance(now)
            self.dispatch(now)
        if self.version == decided.following:
            self.report.committed(commit, self.version, self.plan.wire)

    def _advance(self, now: float) -> None:
        """(generation, step) is committed; go on to step + 1."""
        assert self.version is not None
        self.version = self.version.following
        tokens = self._tokens_per_micro_batch * self.plan.micro_batches
        step_sum = self.lease_book.sum
        self.report.advanced(self.version, step_sum.loss if step_sum is not None else None, tokens, now)
        self.router.weights.begin(self.version, self.elements)
        self._out.put(DropAll())
        self._next_phase(now)

    def _next_phase(self, now: float) -> None:
        """Choose what is done with the weights of the current version."""
        assert self.version is not None
        self.lease_book.forget_step()
        step = self.version.step
        due = self.plan.evaluates_at(step) and self.report.evaluated_step != step
        if due and self._evaluation_batches != 0:
            self.job.phase = "evaluate"
            if self._evaluation_batches is not None:
                self.lease_book.evaluation = Evaluation(self._evaluation_batches)
        elif step >= self.plan.steps:
            self.job.phase = "checkpoint"
            self._finish_if_saved()
        else:
            self.job.phase = "train"
            room = self._lanes * self.plan.wire.gradients_per_float32
            checked = sampled(self.job.id, step, self.plan.micro_batches, self.plan.verify_fraction)
            step_sum = StepSum(self.version, self.plan.micro_batches, self.chunks, now, room, checked)
            self.lease_book.begin(step_sum, now, planned=self.quorum.enough(now))

    def checkpoint_written(self, written: pb.CheckpointWritten) -> None:
        """The optimizer has put a checkpoint on disk."""
        self._checkpoint = Version(written.generation, written.step)
        self.report.checkpoint_written(written)
        self._finish_if_saved()

    def _finish_if_saved(self) -> None:
        saved = self._checkpoint
        if self.job.phase == "checkpoint" and saved is not None and saved.step == self.plan.steps:
            self.end(SUCCEEDED, f"finished {self.plan.steps} steps")

    # ---- chunks ----

    def chunk_arrived(self, member: Member, header: ChunkHeader, now: float, *, in_place: bool) -> None:
        """A chunk came from a worker; stale ones are dropped, repeated ones harmless."""
        if self.lease_book.check_chunk(member.session, header) is not None:
            return
        if header.kind == INITIAL_WEIGHTS:
            self.router.initial(header)
            return
        step_sum, assignment = self.lease_book.sum, self.lease_book.trains(member.session, header.lease)
        assert step_sum is not None and assignment is not None
        if in_place and not member.in_place:
            self.orders.window(member.session, step_sum, self.chunks)
        member.in_place = in_place
        step_sum.blame(assignment, member.name, header.non_finite)
        self.router.gradient(step_sum, assignment, header, self.elements)
        if step_sum.widen():
            self.lease_book.tell_window(step_sum)

    def weights_arrived(self, header: ChunkHeader, now: float) -> None:
        """A chunk of weights came from the optimizer; one of the next version implies its COMMIT."""
        version = Version(header.generation, header.step)
        if self.version is None or header.kind != WEIGHTS or header.index >= self.chunks:
            return
        if version == self.version.following:
            self._advance(now)
            self.dispatch(now)
        if version == self.version == self.router.weights.version:
            self.router.store(header)

    # ---- workers ----

    def join(self, member: Member) -> None:
        """Have a worker build the job, unless it was found faulty."""
        member.leave_job()
        if why := self._exclusions.why(member.name):
            member.refused = why
            self.orders.leave(member.session, why)
            return
        self.orders.join(member.session, self.report.spec_json)

    def ready(self, member: Member, ready: pb.Ready, now: float) -> None:
        """A worker has built the job."""
        reason = self.admission.why_not(ready.layout_hash, ready.fingerprint)
        if ready.evaluation_batches > MOST_BATCHES:
            found = f"{ready.evaluation_batches} batches of held-out data"
            reason = f"{found}, expected at most {MOST_BATCHES}; raise batch_size"
        if reason:
            self.refuse(member, reason, now)
            return
        if not self.admission.fingerprint:
            self.admission.fingerprint = dict(ready.fingerprint)
            self.report.save()
        self.admission.admitted(member.name)
        member.ready, member.layout_hash, member.unfit = True, ready.layout_hash, ""
        member.holds = Version(ready.generation, ready.step) if ready.holds else None
        self._tokens_per_micro_batch = ready.tokens_per_micro_batch
        if self._evaluation_batches is None:
            self._evaluation_batches = ready.evaluation_batches
            if self.job.phase == "evaluate":
                self._next_phase(now)
        differing = self.admission.differences(ready.fingerprint)
        accepted = f", with what the job accepts (`exact: false`): {differing}" if differing else ""
        self.report.note("member", f"worker {member.name} is ready{accepted}")
        if not self.ended:
            self.dispatch(now)

    def refuse(self, member: Member, reason: str, now: float) -> None:
        """A worker takes no part in this job."""
        member.ready, member.refused, member.unfit = False, reason, ""
        self.admission.refused(member.name)
        self.lease_book.abandon(member, now)
        self.report.note("member", f"worker {member.name} takes no part: {reason}")
        self.orders.leave(member.session, reason)
        self._end_if_hopeless(now)

    def failed(self, member: Member, failure: pb.Failure, now: float) -> None:
        """A worker could not do a lease: others have it, or itself; but not for ever."""
        step_sum = self.lease_book.sum
        if step_sum is not None and self.lease_book.checks.failed(
            step_sum, member, failure.lease, failure.reason
        ):
            return
        parts = self.lease_book.failed(member.session, failure.lease, now)
        if parts is None:
            return
        hopeless = self._failures.add(member.name, self._work(parts), failure.reason)
        if hopeless:
            self.end(FAILED, hopeless)
            return
        member.failures += 1
        if member.failures == MOST_FAILURES:
            self.refuse(
                member, f"{MOST_FAILURES} leases in a row failed, the last with: {failure.reason}", now
            )
            return
        self.report.note("member", f"worker {member.name} failed in step {self.job.step}: {failure.reason}")

    def _work(self, parts: range) -> FailedWork:
        return FailedWork(self.job.phase, self.version, parts)

    def unfit(self, member: Member, reason: str, now: float) -> None:
        """A worker can't open its mesh; it says Ready when it can."""
        told, member.unfit = member.unfit, reason
        self.admission.refused(member.name)
        if told != reason:
            self.report.note("member", f"worker {member.name} is unfit and tries again: {reason}")
        self._end_if_hopeless(now)

    def _end_if_hopeless(self, now: float) -> None:
        members = self._members.values()
        if self.admission.hopeless(members, now):
            reasons = "; ".join(sorted(f"{each.name}: {each.refused or each.unfit}" for each in members))
            self.end(FAILED, f"no worker can run it; {reasons}")

    def weights_loaded(self, member: Member, weights_loaded: pb.WeightsLoaded, now: float) -> None:
        """A worker has complete weights of a version on its mesh."""
        member.holds, member.stalled = Version(weights_loaded.generation, weights_loaded.step), False
        step_sum = self.lease_book.sum
        if step_sum is not None and member.holds == step_sum.version:
            step_sum.begun(member.session, now)
        self.dispatch(now)

    def description(self, member: Member, description: pb.Description) -> None:
        """The initialising worker says what its chunks will be."""
        current = self.lease_book.initialises(member.session, description.lease)
        if current is None:
            return
        current.described = True
        layout, files = description.layout_json, dict(description.files)
        self._out.put(ToOptimizer(pb.Initialise(job=self.job.id, layout_json=layout, files=files)))

    def computed(self, member: Member, computed: pb.Computed, now: float) -> None:
        """A worker has computed a lease, whose chunks are on the way, or a check."""
        step_sum = self.lease_book.sum
        if step_sum is None:
            return
        assignment = self.lease_book.trains(member.session, computed.lease)
        if assignment is None:
            if self.lease_book.checks.answered(step_sum, member, computed.lease, computed.checksums):
                member.failures = 0
                self.dispatch(now)
            return
        assignment.computed, member.stalled, member.failures = True, False, 0
        self._failures.done(self._work(assignment.node.micro_batches))
        member.measured(assignment.node.count, computed.seconds)
        self.lease_book.checks.told(step_sum, member.name, assignment, computed.checksums, now)
        self.dispatch(now)

    def evaluated(self, member: Member, evaluated: pb.Evaluated, now: float) -> None:
        """A worker has evaluated a lease."""
        version = Version(evaluated.generation, evaluated.step)
        evaluation = self.lease_book.evaluation
        if evaluation is None or version != self.version:
            return
        batches = evaluation.finish(evaluated.lease, evaluated.losses)
        if batches is None:
            return
        self._failures.done(self._work(batches))
        member.stalled, member.failures = False, 0
        if evaluation.complete:
            self.report.evaluated(version, evaluation.loss)
            self._next_phase(now)
        if not self.ended:
            self.dispatch(now)

    def lost(self, member: Member, reason: str, now: float) -> None:
        """A worker is gone (and no member any more); its leases are void."""
        self.lease_book.abandon(member, now)
        self.report.note("member", f"worker {member.name} is gone: {reason}")
        self.dispatch(now)

    # ---- giving out work ----

    def dispatch(self, now: float) -> None:
        """Grant what can be granted."""
        if self.job.phase != "checkpoint" and not self.quorum.enough(now):
            return
        if self.version is None:
            if self.optimizer_state in (pb.OptimizerStatus.EMPTY, pb.OptimizerStatus.RECEIVING):
                self.lease_book.initialise(now)
        elif self.lease_book.sum is not None:
            self.lease_book.train(self.lease_book.sum, now)
            self._verify(self.lease_book.sum, now)
        elif self.lease_book.evaluation is not None:
            self.lease_book.evaluate(self.lease_book.evaluation, self.version, now)

    def _verify(self, step_sum: StepSum, now: float) -> None:
        """Have checks made; the sum may be complete once all are closed."""
        if not step_sum.coverage.gated:
            return
        finding = self.lease_book.checks.advance(
            step_sum, [each for each in self.lease_book.able() if each.streamed], now
        )
        if finding is not None:
            self._exclude(finding, now)
        elif step_sum.verified:
            self.router.open_gate(step_sum, self.elements)

    def _exclude(self, finding: Finding, now: float) -> None:
        """Workers are faulty: they take no part any more, and nothing that was summed counts."""
        assert self.version is not None
        self.lease_book.sum = None
        self._out.put(DropAll())
        self._exclusions.add(finding, self.version)
        self.report.save()
        for member in list(self._members.values()):
            if member.name in finding.workers and not self.ended:
                self.refuse(member, self._exclusions.why(member.name), now)
        if not self.ended:
            self._start_over(self.version)

    def _start_over(self, version: Version) -> None:
        """Have the optimizer go back, or forget what is staged alone: its next Standing is of a later generation."""
        if self.plan.on_faulty == "go_back" and self._exclusions.void(version):
            self.open()
        else:
            self._out.put(ToOptimizer(pb.StartOver(job=self.job.id, generation=version.generation)))

    def _is_void(self, version: Version, missing: Iterable[pb.Range]) -> bool:
        """Whether what the optimizer has of the step's sum may hold what a faulty worker made.

        Of a sum that another aggregator began, nobody knows the checks any more.
        """
        if self._exclusions.void(version):
            return True
        unknown = version != self.version and bool(self.plan.verify_fraction)
        return unknown and 0 < sum(each.count for each in missing) < self.chunks

    def tick(self, now: float) -> None:
        """Give leases that take too long to others, if there are idle ones."""
        self._end_if_hopeless(now)
        if self.ended:
            return
        self.lease_book.release_late(self.version, now)
        self.dispatch(now)
