"""Leases that take too long, given back so that others may have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.members import Member
from aggregator.core.sums.step_sum import StepSum
from services.timeouts import Timeouts

STALLED_TIMES = 5
"""A lease that takes longer than the `stall` rung, and than that many times what its worker's speed lets expect, goes
to somebody else, if there is one."""


class Stalls:
    """Of one job.

    Args:
        timeouts: of the cluster.
        members: those that are connected, by session.
        orders: takes leases back.
        report: is told.
    """

    def __init__(
        self, timeouts: Timeouts, members: Mapping[int, Member], orders: WorkerOrders, report: JobReport
    ) -> None:
        self._timeouts = timeouts
        self._members = members
        self._orders = orders
        self._report = report

    def stalled(self, session: int, since_seconds: float, micro_batches: int, now: float) -> bool:
        """Whether a worker takes too long over a lease; if so, it is marked, and people are told."""
        member = self._members[session]
        expected = micro_batches / member.speed if member.speed else 0.0
        if now - since_seconds <= max(self._timeouts.stall, STALLED_TIMES * expected):
            return False
        member.stalled = True
        text = f"worker {member.name} stalled on step {self._report.job.step}; its work goes to others"
        self._report.note("member", text)
        return True

    def release_gradients(self, step_sum: StepSum, now: float) -> None:
        """Make nobody's what takes too long of a step."""
        for each in step_sum.assignments:
            if each.session is None or each.computed:
                continue
            work = sum(other.node.count for other in step_sum.of_session(each.session))
            if self.stalled(each.session, each.since_seconds, work, now):
                if each.lease:
                    self._orders.revoke(each.session, each.lease)
                step_sum.release(each, now)

    def release_losses(self, evaluation: Evaluation, now: float) -> None:
        """Make nobody's what takes too long of an evaluation."""
        for lease in list(evaluation.leases.values()):
            if self.stalled(lease.session, lease.since_seconds, lease.count, now):
                self._orders.revoke(lease.session, lease.lease)
                evaluation.release(lease)
