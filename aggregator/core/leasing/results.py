"""Results of leases: what rows report of the leases they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.failures import Blame, LeasedWork, LeaseFailures
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.rows.row import Row
from aggregator.core.verification.answers import collect_answers
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Job
from services.protocol.phases import JobPhase
from services.protocol.versions import Version

Reports: TypeAlias = Sequence[tuple[Member, pb.Computed]]
"""The workers of a row, and what each has reported of a lease that it has computed."""


class LeaseResults:
    """Records what rows report of their leases in one job.

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

    def record_weights_loaded(self, row: Row, now: float) -> None:
        """Record that all workers of a row have weights of a version that some of them had not."""
        row.stalled = row.stalled and row.keeps_stalling
        step_sum = self._lease_book.step_sum
        if step_sum is not None and row.loaded_version == step_sum.version:
            step_sum.restart_clock(row.session, now)

    def record_computed(self, row: Row, lease: int, reports: Reports, now: float) -> bool:
        """Record that a row has computed a lease or a check; return False if the reports are stale."""
        step_sum = self._lease_book.step_sum
        if step_sum is None:
            return False
        checks = self._lease_book.checks
        answers = collect_answers(row.names, lease, ((each.name, part.checksums) for each, part in reports))
        assignment = self._lease_book.find_assignment(row.session, lease)
        if assignment is None:
            if not checks.record_answer(step_sum, row, lease, answers):
                return False
            row.note_work()
            return True
        assignment.computed, row.stalled = True, False
        self._failures.clear(self._work(step_sum.version, assignment.node.micro_batches))
        took_seconds = now - assignment.since_seconds  # by a clock that no worker can lie about
        for worker, part in reports:
            step_sum.note_findings(assignment, worker.name, part.findings)
            believed = 0.0 <= part.seconds <= took_seconds
            worker.record_lease(assignment.node.count, part.seconds if believed else took_seconds)
            worker.failures = 0
        checks.record_checksums(step_sum, assignment, answers, now)
        return True

    def record_losses(
        self, row: Row, evaluated: pb.Evaluated, losses: Iterable[pb.BatchLoss], version: Version | None
    ) -> Evaluation | None:
        """Record a row's losses of a lease; return the evaluation, None if the report is stale."""
        evaluation = self._lease_book.evaluation
        if evaluation is None or version != Version(evaluated.generation, evaluated.step):
            return None
        batches = evaluation.finish(evaluated.lease, losses)
        if batches is None:
            return None
        self._failures.clear(self._work(version, batches))
        row.note_work()
        return evaluation

    def release(self, row: Row, failure: pb.Failure, now: float) -> range | None:
        """Release a failed lease; return its micro-batches or batches, None for a check or a void lease."""
        step_sum, checks = self._lease_book.step_sum, self._lease_book.checks
        if step_sum is not None and checks.record_failure(step_sum, row, failure.lease, failure.reason):
            return None
        return self._lease_book.release_failed(row.session, failure.lease, now)

    def record_failure(
        self, row: Row, member: Member, failure: pb.Failure, version: Version | None, now: float
    ) -> Blame:
        """Release a failed lease; return who is at fault.

        Args:
            row: the row that has the lease.
            member: the worker that it failed on.
            failure: what the worker reports.
            version: the version of the job's weights.
            now: the time, on the monotonic clock.
        """
        indices = self.release(row, failure, now)
        if indices is None:
            return Blame()
        fault_of_job = self._failures.add(member.name, self._work(version, indices), failure.reason)
        if fault_of_job is not None:
            return Blame(job=fault_of_job)
        return Blame(worker=self._job_members.count_failure(member, failure.reason))

    def _work(self, version: Version | None, indices: range) -> LeasedWork:
        return LeasedWork(JobPhase(self._job.phase), version, indices)
