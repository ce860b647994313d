"""What the running job's workers have to do: make initial weights, train a step and check it, or evaluate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.core.events import Drop, Outbox
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.initialisation import Initialisation
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.leasing.stalls import Stalls
from aggregator.core.membership.members import Member, speeds
from aggregator.core.sums.step_sum import Assignment, StepSum
from aggregator.core.verification.checks import JobChecks
from aggregator.core.waits import waits_of
from protos.jobs_pb2 import Wait
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.errors import Refusal
from services.protocol.versions import Version
from services.tensors.chunk_ranges import to_ranges
from services.timeouts import Timeouts


class LeaseBook:
    """Leases of all kinds: who has them, who is to have them, and who no longer.

    Args:
        timeouts: of the cluster.
        members: those that are connected, by session.
        orders: grants leases, and takes them back.
        report: is told.
        out: takes what is decided.
        checked: whether some micro-batches are computed twice.

    Attributes:
        initialisation: of the weights, if a worker makes them.
        sum: of the step, while it is trained.
        evaluation: of the weights, while there is one.
        checks: of the step.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        members: Mapping[int, Member],
        orders: WorkerOrders,
        report: JobReport,
        out: Outbox,
        *,
        checked: bool,
    ) -> None:
        self.initialisation: Initialisation | None = None
        self.sum: StepSum | None = None
        self.evaluation: Evaluation | None = None
        self.checks = JobChecks(timeouts, members, orders, report, out, wanted=checked)
        self._stalls = Stalls(timeouts, members, orders, report)
        self._members = members
        self._orders = orders
        self._report = report
        self._out = out

    # ---- what is asked of it ----

    def able(self) -> list[Member]:
        """The workers that can be given work; those that stalled only if there are no others."""
        able = [member for member in self._members.values() if member.able]
        return [member for member in able if not member.stalled] or able

    def is_computing(self, member: Member) -> bool:
        """Whether a worker has something to compute now."""
        initialising = self.initialisation is not None and self.initialisation.session == member.session
        training = self.sum is not None and (
            self.sum.busy(member.session) or self.checks.busy(self.sum, member.session)
        )
        evaluating = self.evaluation is not None and self.evaluation.busy(member.session)
        return initialising or training or evaluating

    def waits(self, now: float) -> list[Wait]:
        """What workers owe the job."""
        job = self._report.job
        return waits_of(job, self.initialisation, self.sum, self.evaluation, self._members, now)

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""
        if header.kind == INITIAL_WEIGHTS:
            if self.initialises(session, header.lease) is None:
                return Refusal(f"it has initial weights, which lease {header.lease} does not ask for")
            return None
        if header.kind != GRADIENT:
            return Refusal(f"its kind is {header.kind}, expected a gradient or initial weights")
        version = Version(header.generation, header.step)
        if self.sum is None or self.sum.version != version:
            job = self._report.job
            return Refusal(
                f"it belongs to generation {version.generation}, step {version.step}; the job is in generation "
                f"{job.generation} at step {job.step}, phase {job.phase}"
            )
        if self.trains(session, header.lease) is None:
            return Refusal(f"its lease is {header.lease}, which this worker does not hold now")
        return None

    def initialises(self, session: int, lease: int) -> Initialisation | None:
        """The making of initial weights, if this worker does it under that lease."""
        current = self.initialisation
        known = current is not None and (current.session, current.lease) == (session, lease)
        return current if known else None

    def trains(self, session: int, lease: int) -> Assignment | None:
        """What this worker computes for the step's sum under that lease, if it has it (still)."""
        assignment = self.sum.by_lease(lease) if self.sum is not None else None
        return assignment if assignment is not None and assignment.session == session else None

    # ---- granting ----

    def begin(self, step_sum: StepSum, now: float, *, planned: bool) -> None:
        """Go on to a step, `planned` at once for the workers that are being sent its weights."""
        self.sum = step_sum
        expected = [member for member in self.able() if member.streamed] if planned else []
        step_sum.distribute(speeds(expected), now)
        for member in expected:
            if not step_sum.of_session(member.session):
                member.idled()

    def initialise(self, now: float) -> None:
        """Have the first worker that can make the initial weights, unless one does."""
        able = self.able()
        if self.initialisation is None and able:
            session = able[0].session
            self.initialisation = Initialisation(self._orders.initialise(session), session, now)

    def train(self, step_sum: StepSum, now: float) -> None:
        """Grant what is planned of a step's sum, after planning what is nobody's."""
        able = self.able()
        self._share_out(step_sum, able, now)
        # Whoever is being sent the weights starts with the first of them: it needn't hold them all to be granted
        # what was planned for it. What is left over goes to those that do hold them.
        sessions = {member.session for member in able if member.streamed}
        for assignment in step_sum.assignments:
            if assignment.session in sessions and not assignment.lease:
                member = self._members[assignment.session]
                self.checks.leased(step_sum, member.name)
                self._orders.train(member.session, step_sum, assignment, now, in_place=member.in_place)

    def _share_out(self, step_sum: StepSum, able: Iterable[Member], now: float) -> None:
        """Plan what is nobody's for those that are idle, and leave to the others what they will soon be free for."""
        streamed = [member for member in able if member.streamed]
        busy = [member for member in streamed if step_sum.busy(member.session)]
        idle = [
            member
            for member in able
            if member.holds == step_sum.version and not step_sum.busy(member.session)
        ]
        known = speeds([*idle, *busy])
        left = {each.session: step_sum.busy_seconds(each.session, known[each.session], now) for each in busy}
        step_sum.distribute(known, now, left)

    def evaluate(self, evaluation: Evaluation, version: Version, now: float) -> None:
        """Grant held-out batches to those that hold the weights and have none."""
        holders = [member for member in self.able() if member.holds == version]
        for member in holders:
            if not evaluation.busy(member.session):
                self._orders.evaluate(member.session, evaluation, version, len(holders), now)

    def tell_window(self, step_sum: StepSum) -> None:
        """Tell all who send a step's chunks how far they may; what is read in place needs no window."""
        for session in sorted(step_sum.sessions()):
            if not self._members[session].in_place:
                self._orders.window(session, step_sum, step_sum.limit)

    def reconcile(self, step_sum: StepSum, missing: set[int]) -> None:
        """Hold a step's coverage against what the optimizer lacks of it; what it lost is sent again."""
        for chunk in range(step_sum.coverage.chunks):
            if chunk not in missing:
                for node in step_sum.coverage.mark_done(chunk):
                    self._out.put(Drop(chunk, node))
        told = step_sum.limit
        reopened = to_ranges(step_sum.reopen(sorted(missing)))
        if step_sum.widen() or step_sum.limit != told:
            self.tell_window(step_sum)
        for each in step_sum.assignments:
            if reopened and each.lease and each.session is not None:
                self._orders.resend(each.session, each.lease, reopened)

    # ---- taking back ----

    def forget_step(self) -> None:
        """What is done with the weights of a version is over."""
        self.sum = self.evaluation = None

    def end_initialisation(self) -> None:
        """Nobody makes the initial weights any more."""
        current, self.initialisation = self.initialisation, None
        if current is not None and current.session in self._members:
            self._orders.revoke(current.session, current.lease)

    def failed(self, session: int, lease: int, now: float) -> range | None:
        """Make a lease nobody's; the micro-batches (or batches) of it, None if this worker has no such lease."""
        if self.initialises(session, lease) is not None:
            self.initialisation = None
            return range(1)
        assignment = self.trains(session, lease)
        if self.sum is not None and assignment is not None:
            self.sum.release(assignment, now)
            return assignment.node.micro_batches
        return self.evaluation.failed(session, lease) if self.evaluation is not None else None

    def abandon(self, member: Member, now: float) -> None:
        """A worker is gone, or takes no part: what it had is nobody's."""
        if self.sum is not None:
            self.sum.abandon(member.session, now)
            self.checks.abandon(self.sum, member.session)
        if self.evaluation is not None:
            self.evaluation.abandon(member.session)
        if self.initialisation is not None and self.initialisation.session == member.session:
            self.initialisation = None

    def release_late(self, version: Version | None, now: float) -> None:
        """Make nobody's what takes too long, if somebody who holds the weights is idle."""
        if self.sum is not None:
            self.checks.release_late(self.sum, now)
        holders = [each for each in self.able() if version is None or each.holds == version]
        if all(self.is_computing(member) for member in holders):
            return
        current = self.initialisation
        if current is not None and self._stalls.stalled(current.session, current.since_seconds, 0, now):
            self.end_initialisation()
        if self.sum is not None:
            self._stalls.release_gradients(self.sum, now)
        if self.evaluation is not None:
            self._stalls.release_losses(self.evaluation, now)
