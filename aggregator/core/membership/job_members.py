"""The workers of one job: who joins it, who is admitted, who is refused."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import MOST_BATCHES
from aggregator.core.leasing.failures import MOST_FAILURES
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.admission import Admission
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.membership.members import Member
from protos import cluster_pb2 as pb
from services.errors import Refusal
from services.protocol.versions import Version


class JobMembers:
    """Admits workers to a job and refuses those that do not fit.

    Args:
        members: The connected workers, by session.
        admission: What the job demands of them.
        exclusions: The workers it has found faulty.
        orders: Sends workers their orders.
        report: The job's record and log.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        admission: Admission,
        exclusions: Exclusions,
        orders: WorkerOrders,
        report: JobReport,
    ) -> None:
        self._members = members
        self._admission = admission
        self._exclusions = exclusions
        self._orders = orders
        self._report = report

    def join(self, member: Member) -> None:
        """Order a worker to build the job, unless it is excluded."""
        member.leave_job()
        refusal = self._exclusions.find(member.name)
        if refusal is not None:
            member.refusal = refusal
            self._orders.leave(member.session, str(refusal))
            return
        self._orders.join(member.session, self._report.spec_json)

    def admit(self, member: Member, ready: pb.Ready) -> Refusal | None:
        """Admit a worker that has built the job; return why it doesn't fit, None if it does."""
        refusal = self._admission.check(ready.layout_hash, ready.fingerprint)
        if ready.evaluation_batches > MOST_BATCHES:
            found = f"{ready.evaluation_batches} batches of held-out data"
            refusal = Refusal(f"{found}, expected at most {MOST_BATCHES}; raise batch_size")
        if refusal is not None:
            return refusal
        if not self._admission.fingerprint:
            self._admission.fingerprint = dict(ready.fingerprint)
            self._report.save()
        self._admission.admit(member.name)
        member.ready, member.layout_hash, member.unfit = True, ready.layout_hash, None
        member.loaded_version = Version(ready.generation, ready.step) if ready.holds else None
        return None

    def note_admission(self, member: Member, ready: pb.Ready) -> None:
        """Publish that a worker is ready, and how its fingerprint differs from the job's."""
        differences = self._admission.describe_differences(ready.fingerprint)
        accepted = f", with what the job accepts (`exact: false`): {differences}" if differences else ""
        self._report.note("member", f"worker {member.name} is ready{accepted}")

    def refuse(self, member: Member, refusal: Refusal) -> None:
        """Send a worker away from this job."""
        member.ready, member.refusal, member.unfit = False, refusal, None
        self._admission.withdraw(member.name)
        self._report.note("member", f"worker {member.name} takes no part in the job: {refusal}")
        self._orders.leave(member.session, str(refusal))

    def count_failure(self, member: Member, reason: str) -> Refusal | None:
        """Count a failed lease; return why its worker must be refused, None if it may go on."""
        member.failures += 1
        if member.failures == MOST_FAILURES:
            return Refusal(f"{MOST_FAILURES} leases in a row failed, the last with: {reason}")
        job = self._report.job
        self._report.note("member", f"worker {member.name} failed in step {job.step}: {reason}")
        return None

    def mark_unfit(self, member: Member, reason: Refusal) -> None:
        """Record that a worker can't open its mesh; it reports Ready when it can."""
        known, member.unfit = member.unfit, reason
        self._admission.withdraw(member.name)
        if known != reason:
            self._report.note("member", f"worker {member.name} is unfit and tries again: {reason}")

    def check_hope(self, now: float) -> Refusal | None:
        """Return why no worker can run the job, with each worker's reason; None if there is hope."""
        members = self._members.values()
        if not self._admission.is_hopeless(members, now):
            return None
        reasons = "; ".join(sorted(f"{each.name}: {each.refusal or each.unfit}" for each in members))
        return Refusal(f"no worker can run the job: {reasons}")
