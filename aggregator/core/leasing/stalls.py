"""Leases that take too long are taken back, so that other workers can have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.members import Member
from aggregator.core.sums.step_sum import StepSum
from services.timeouts import Timeouts

STALLED_TIMES = 5
"""Multiple of the expected duration after which a lease has stalled, unless the `stall` timeout is longer."""


class Stalls:
    """The stalled leases of one job.

    Args:
        timeouts: the cluster's timeouts.
        members: the connected workers, by session.
        orders: sends revocations.
        report: publishes which worker has stalled.
    """

    def __init__(
        self, timeouts: Timeouts, members: Mapping[int, Member], orders: WorkerOrders, report: JobReport
    ) -> None:
        self._timeouts = timeouts
        self._members = members
        self._orders = orders
        self._report = report

    def mark_if_stalled(self, session: int, since_seconds: float, micro_batches: int, now: float) -> bool:
        """Return whether a worker takes too long over a lease; if so, mark the worker and publish that."""
        member = self._members[session]
        expected_seconds = micro_batches / member.speed if member.speed else 0.0
        if now - since_seconds <= max(self._timeouts.stall, STALLED_TIMES * expected_seconds):
            return False
        member.stalled = True
        text = f"{member.title} stalled on step {self._report.job.step}; its work goes to others"
        self._report.note("member", text)
        return True

    def release_gradients(self, step_sum: StepSum, now: float) -> None:
        """Make orphans of a step's stalled assignments."""
        work: Counter[int] = Counter()
        for each in step_sum.assignments:
            if each.session is not None:
                work[each.session] += each.node.count
        for each in step_sum.assignments:
            if each.session is None or each.computed:
                continue
            if self.mark_if_stalled(each.session, each.since_seconds, work[each.session], now):
                if each.lease:
                    self._orders.revoke(each.session, each.lease)
                step_sum.release(each, now)

    def release_losses(self, evaluation: Evaluation, now: float) -> None:
        """Free the batches of an evaluation's stalled leases."""
        for lease in list(evaluation.leases.values()):
            if self.mark_if_stalled(lease.session, lease.since_seconds, lease.count, now):
                self._orders.revoke(lease.session, lease.lease)
                evaluation.release(lease)
