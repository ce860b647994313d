"""The checks of a running job's steps: who computes a sampled micro-batch again, and what follows from it. Pure.

A check is computed by a worker that has nothing else to do in the step. Its step is not committed before it is closed
(`Coverage.gated`); so each ends: with an answer, or with nobody left to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.core.events import Outbox, Verified
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.leasing.stalls import STALLED_TIMES
from aggregator.core.membership.members import Member
from aggregator.core.sums.step_sum import Assignment, StepSum
from aggregator.core.verification.opinions import Check, Opinion, agree, faulty, whom_to_ask
from protos.cluster_pb2 import Checksum
from services.timeouts import Timeouts


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        workers: that are faulty, by name.
        text: what the check says, for people.
        trusted_step: what these did for steps before it was right, as far as anybody can say.
    """

    workers: frozenset[str]
    text: str
    trusted_step: int


class JobChecks:
    """Of one job.

    Args:
        timeouts: of the cluster.
        members: those that are connected, by session.
        orders: has micro-batches computed again.
        report: is told, and keeps in the job's record which steps of a worker are trusted.
        out: takes what is counted.
        wanted: whether there are to be any.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        members: Mapping[int, Member],
        orders: WorkerOrders,
        report: JobReport,
        out: Outbox,
        *,
        wanted: bool,
    ) -> None:
        self._wanted = wanted
        self._timeouts = timeouts
        self._members = members
        self._orders = orders
        self._report = report
        self._out = out

    def leased(self, step_sum: StepSum, worker: str) -> None:
        """A worker takes part in a step: until one of its gradients passes, nothing of it is trusted from here on."""
        if self._wanted and worker not in self._report.job.trusted_steps:
            self._report.trust(worker, step_sum.version.step)
            self._report.save()  # else an aggregator that comes after this one would trust it up to a later step

    # ---- what workers say ----

    def told(
        self,
        step_sum: StepSum,
        worker: str,
        assignment: Assignment,
        checksums: Iterable[Checksum],
        now: float,
    ) -> None:
        """A worker has computed an assignment's node for the step's sum."""
        own = step_sum.checked_in(assignment.node)
        for each in checksums:
            if each.micro_batch in own and not step_sum.checks[each.micro_batch].outcome:
                check = step_sum.checks[each.micro_batch]
                check.since_seconds = check.since_seconds if check.opinions else now
                check.told(Opinion(worker, assignment.lease, each.crc32c))

    def answered(self, step_sum: StepSum, member: Member, lease: int, checksums: Iterable[Checksum]) -> bool:
        """A worker has computed a lease; whether that was a check."""
        check = self._by_lease(step_sum, member.session, lease)
        if check is None:
            return False
        check.lease = 0
        crc32c = next((each.crc32c for each in checksums if each.micro_batch == check.micro_batch), None)
        if crc32c is None:
            check.declined.add(member.name)
        else:
            check.told(Opinion(member.name, lease, crc32c))
        return True

    def failed(self, step_sum: StepSum, member: Member, lease: int, reason: str) -> bool:
        """A worker could not do a lease; whether that was a check, which is nothing that the step can't do without."""
        check = self._by_lease(step_sum, member.session, lease)
        if check is None:
            return False
        self._let_go(check, member.name)
        text = f"worker {member.name} could not check micro-batch {check.micro_batch} of step {self._step}: {reason}"
        self._report.note("member", text)
        return True

    def busy(self, step_sum: StepSum, session: int) -> bool:
        """Whether a worker is computing a check."""
        return any(check.lease and check.session == session for check in step_sum.checks.values())

    def abandon(self, step_sum: StepSum, session: int) -> None:
        """A worker is gone: another is asked."""
        for check in step_sum.checks.values():
            if check.lease and check.session == session:
                check.lease = 0

    def _by_lease(self, step_sum: StepSum, session: int, lease: int) -> Check | None:
        of_lease = (each for each in step_sum.checks.values() if lease and each.lease == lease)
        return next((each for each in of_lease if each.session == session), None)

    @staticmethod
    def _let_go(check: Check, worker: str) -> None:
        check.lease = 0
        check.declined.add(worker)

    # ---- time ----

    def release_late(self, step_sum: StepSum, now: float) -> None:
        """Take checks back from who takes too long over them: a step is not held for long."""
        for check in step_sum.checks.values():
            if not check.lease:
                continue
            member = self._members[check.session]
            seconds = now - check.since_seconds
            if seconds <= self._patience_seconds(member):
                continue
            self._orders.revoke(member.session, check.lease)
            self._let_go(check, member.name)
            text = f"worker {member.name} has not checked micro-batch {check.micro_batch} of step "
            self._report.note("member", f"{text}{self._step} within {seconds:.0f} s; it is asked no more")

    def _patience_seconds(self, member: Member) -> float:
        """A worker whose speed is known is waited for less long than a lease is."""
        if not member.speed:
            return self._timeouts.stall
        return max(self._timeouts.deaf, STALLED_TIMES / member.speed)

    # ---- what follows ----

    def advance(self, step_sum: StepSum, able: Sequence[Member], now: float) -> Finding | None:
        """Close the checks that can be, and ask for what the others lack.

        Args:
            step_sum: of the step.
            able: the workers that can compute, or soon can: those that are sent its weights.
            now: the time.

        Returns:
            The first workers that are found faulty: nothing that was computed for this step counts any more.
        """
        holders = [each for each in able if each.holds == step_sum.version]
        idle = [
            each for each in holders if not (step_sum.busy(each.session) or self.busy(step_sum, each.session))
        ]
        for check in step_sum.checks.values():
            if check.outcome:
                continue
            guilty = faulty(check.opinions) if check.opinions else set()
            if guilty:
                self._close(check, "faulty")
                step = step_sum.version.step
                trusted = min(self._report.job.trusted_steps.get(worker, step) for worker in guilty)
                return Finding(frozenset(guilty), self._said(check), trusted)
            if check.lease:
                continue
            if not check.opinions:
                if not step_sum.owes(check.micro_batch):
                    self._close(check, "abandoned", "who computed it has not told its checksum")
                continue
            if len(check.opinions) > 1 and agree(check.opinions):
                self._close(check, "passed")
                for opinion in check.opinions:
                    self._report.trust(opinion.worker, step_sum.version.step)
                continue
            patient = now - check.since_seconds <= self._timeouts.deaf
            those = able if patient else holders  # a mesh that hangs never holds the weights
            names = [each.name for each in those if each.name not in check.declined]
            wanted = whom_to_ask(check.opinions, names)
            if not wanted and able:  # with nobody there the job waits for workers anyway
                self._close_unanswered(check)
            for member in idle:
                if member.name in wanted:
                    idle.remove(member)
                    self._ask(step_sum, check, member, now)
                    break
        return None

    def _ask(self, step_sum: StepSum, check: Check, member: Member, now: float) -> None:
        check.session, check.since_seconds = member.session, now
        check.lease = self._orders.verify(member.session, step_sum.version, check.micro_batch)

    def _close_unanswered(self, check: Check) -> None:
        if agree(check.opinions):
            self._close(check, "abandoned", "nobody is left to compute it again")
        else:
            text = "these differ, each stands by its own, and there is no other worker to say who is faulty"
            self._close(check, "undecided", text)

    def _close(self, check: Check, outcome: str, why: str = "") -> None:
        check.outcome = outcome
        self._out.put(Verified(self._report.job.id, outcome))
        if why:
            self._report.note("member", f"{self._said(check)}: the check is {outcome}: {why}")

    @property
    def _step(self) -> int:
        return self._report.job.step + 1  # as people count

    def _said(self, check: Check) -> str:
        told = check.described() or "none"
        return f"step {self._step}, micro-batch {check.micro_batch}, checksums of its gradient: {told}"
