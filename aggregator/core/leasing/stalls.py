"""Leases that take too long are taken back, so that other workers can have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from aggregator.core.events import NoticeKind
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.devices import STALLED_TIMES
from aggregator.core.rows.row import Row
from aggregator.core.sums.step_sum import StepSum
from services.timeouts import Timeouts


class Stalls:
    """The stalled leases of one job.

    Args:
        timeouts: the cluster's timeouts.
        rows: the job's rows, by session.
        orders: sends revocations.
        report: publishes which row has stalled.
    """

    def __init__(
        self, timeouts: Timeouts, rows: Mapping[int, Row], orders: WorkerOrders, report: JobReport
    ) -> None:
        self._timeouts = timeouts
        self._rows = rows
        self._orders = orders
        self._report = report

    def is_late(self, session: int, since_seconds: float, micro_batches: int, now: float) -> bool:
        """Return whether a row takes too long over a lease, or a device of it hangs.

        A row that is measured while it is alone may take as long as it likes. So no micro-batch is expected to take
        longer than `stall`, else others that come later would wait for it as long.
        """
        if self._rows[session].hangs:
            return True
        speed, stall_seconds = self._rows[session].speed, self._timeouts.stall
        expected_seconds = micro_batches * min(1 / speed, stall_seconds) if speed else 0.0
        return now - since_seconds > max(stall_seconds, STALLED_TIMES * expected_seconds)

    def mark_if_stalled(self, session: int, since_seconds: float, micro_batches: int, now: float) -> bool:
        """Return whether a row takes too long over a lease; if so, mark the row and publish that."""
        if not self.is_late(session, since_seconds, micro_batches, now):
            return False
        row = self._rows[session]
        row.note_stall(self._timeouts.stall, now)
        text = f"{row.title} stalled on step {self._report.job.step}; its work goes to others"
        self._report.note("member", text, NoticeKind.STALLED)
        return True

    def release_gradients(self, step_sum: StepSum, now: float) -> None:
        """Make orphans of a step's stalled assignments."""
        work = _count_work(step_sum)
        for each in step_sum.assignments:
            if each.session is None:
                continue
            if each.computed:  # a row must not hold the step up by sending nothing
                stalled = step_sum.note_owed(each, now) and self.mark_if_stalled(
                    each.session, each.owed_since_seconds, 0, now
                )
            else:
                stalled = self.mark_if_stalled(each.session, each.since_seconds, work[each.session], now)
            if stalled:
                if each.lease:
                    self._orders.revoke(each.session, each.lease)
                step_sum.release(each, now)

    def release_losses(self, evaluation: Evaluation, now: float) -> None:
        """Free the batches of an evaluation's stalled leases."""
        for lease in list(evaluation.leases.values()):
            if self.mark_if_stalled(lease.session, lease.since_seconds, lease.count, now):
                self._orders.revoke(lease.session, lease.lease)
                evaluation.release(lease)

    def find_late(self, step_sum: StepSum | None, evaluation: Evaluation | None, now: float) -> set[int]:
        """Return the sessions of all rows that have the weights and take too long over gradients or losses.

        One that has computed gradients is late once it has not sent those that are due for too long.
        """
        late: set[int] = set()
        if step_sum is not None:
            work = _count_work(step_sum)
            late.update(
                each.session
                for each in step_sum.assignments
                if each.session is not None and not each.computed
                if self._rows[each.session].loaded_version == step_sum.version
                if self.is_late(each.session, each.since_seconds, work[each.session], now)
            )
            late.update(
                each.session
                for each in step_sum.assignments
                if each.session is not None and each.computed and step_sum.note_owed(each, now)
                if self.is_late(each.session, each.owed_since_seconds, 0, now)
            )
        if evaluation is not None:
            late.update(
                lease.session
                for lease in evaluation.leases.values()
                if self.is_late(lease.session, lease.since_seconds, lease.count, now)
            )
        return late


def _count_work(step_sum: StepSum) -> Counter[int]:
    """Return the number of micro-batches that each session has, computed or not."""
    work: Counter[int] = Counter()
    for each in step_sum.assignments:
        if each.session is not None:
            work[each.session] += each.node.count
    return work
