"""Results of leases: what workers report of the leases they hold."""

from __future__ import annotations

from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.failures import Blame, LeasedWork, LeaseFailures
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.verification.answers import Answers
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Job
from services.protocol.phases import JobPhase
from services.protocol.versions import Version


class LeaseResults:
    """Records what workers report of their leases in one job.

    Args:
        job: the job's record.
        lease_book: the job's leases.
        job_members: the job's workers.
    """

    def __init__(self, job: Job, lease_book: LeaseBook, job_members: JobMembers) -> None:
        self._job = job
        self._lease_book = lease_book
        self._job_members = job_members
        self._failures = LeaseFailures()

    def record_weights_loaded(self, member: Member, version: Version, now: float) -> None:
        """Record the version whose complete weights are on a worker's mesh."""
        member.loaded_version = version
        member.stalled = member.stalled and member.keeps_stalling
        step_sum = self._lease_book.step_sum
        if step_sum is not None and member.loaded_version == step_sum.version:
            step_sum.restart_clock(member.session, now)

    def record_computed(self, member: Member, computed: pb.Computed, answers: Answers, now: float) -> bool:
        """Record that a worker or row has computed a lease or a check; return False if the report is stale."""
        step_sum = self._lease_book.step_sum
        if step_sum is None:
            return False
        checks = self._lease_book.checks
        assignment = self._lease_book.find_assignment(member.session, computed.lease)
        if assignment is None:
            if not checks.record_answer(step_sum, member, computed.lease, answers):
                return False
            member.note_work()
            return True
        assignment.computed, member.stalled, member.failures = True, False, 0
        self._failures.clear(self._work(step_sum.version, assignment.node.micro_batches))
        took_seconds = now - assignment.since_seconds  # by a clock that no worker can lie about
        believed = 0.0 <= computed.seconds <= took_seconds
        member.record_lease(assignment.node.count, computed.seconds if believed else took_seconds)
        checks.record_checksums(step_sum, assignment, answers, now)
        return True

    def record_losses(
        self, member: Member, evaluated: pb.Evaluated, version: Version | None
    ) -> Evaluation | None:
        """Record a worker's losses of a lease; return the evaluation, None if the report is stale."""
        evaluation = self._lease_book.evaluation
        if evaluation is None or version != Version(evaluated.generation, evaluated.step):
            return None
        batches = evaluation.finish(evaluated.lease, evaluated.losses)
        if batches is None:
            return None
        self._failures.clear(self._work(version, batches))
        member.note_work()
        return evaluation

    def record_failure(
        self, holder: Member, member: Member, failure: pb.Failure, version: Version | None, now: float
    ) -> Blame:
        """Release a failed lease; return who is at fault.

        Args:
            holder: the worker or row that has the lease.
            member: the worker that it failed on.
            failure: what the worker reports.
            version: the version of the job's weights.
            now: the time, on the monotonic clock.
        """
        step_sum, checks = self._lease_book.step_sum, self._lease_book.checks
        if step_sum is not None and checks.record_failure(step_sum, holder, failure.lease, failure.reason):
            return Blame()
        indices = self._lease_book.release_failed(holder.session, failure.lease, now)
        if indices is None:
            return Blame()
        fault_of_job = self._failures.add(member.name, self._work(version, indices), failure.reason)
        if fault_of_job is not None:
            return Blame(job=fault_of_job)
        return Blame(worker=self._job_members.count_failure(member, failure.reason))

    def _work(self, version: Version | None, indices: range) -> LeasedWork:
        return LeasedWork(JobPhase(self._job.phase), version, indices)
