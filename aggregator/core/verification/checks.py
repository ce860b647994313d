"""The checks of a running job's steps: which row computes a sampled micro-batch again, and what follows.

A check is computed by a row that is idle in the step. The step can't COMMIT before its checks are closed
(`Coverage.gated`), so each check ends: with an answer, or because no row is left to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.core.events import CheckClosed, Outbox
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.devices import STALLED_TIMES
from aggregator.core.rows.row import Row
from aggregator.core.sums.step_sum import Assignment, StepSum
from aggregator.core.verification.answers import (
    Answers,
    choose_next,
    describe_answers,
    find_difference,
    find_faulty_workers,
)
from aggregator.core.verification.check import Check
from aggregator.core.verification.opinions import CheckOutcome
from services.timeouts import Timeouts


@dataclass(frozen=True)
class Finding:
    """Faulty workers, as a check has found them.

    Attributes:
        workers: the names of the faulty workers.
        text: the check's checksums, as one line.
        trusted_step: the step before which these workers' results are trusted.
    """

    workers: frozenset[str]
    text: str
    trusted_step: int


class JobChecks:
    """The checks of one job.

    Args:
        timeouts: the cluster's timeouts.
        rows: the job's rows, by session.
        orders: leases micro-batches to a second row.
        report: the job's record and log; the record says up to which step each worker is trusted.
        out: takes the outcomes for the metrics.
        enabled: whether the job has any checks.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        rows: Mapping[int, Row],
        orders: WorkerOrders,
        report: JobReport,
        out: Outbox,
        *,
        enabled: bool,
    ) -> None:
        self._enabled = enabled
        self._timeouts = timeouts
        self._rows = rows
        self._orders = orders
        self._report = report
        self._out = out

    def begin_trust(self, step_sum: StepSum, rows: Iterable[Row]) -> None:
        """Trust new workers of rows only up to this step, until a gradient passes a check, of this job or another."""
        new = [each for row in rows for each in row.names if each not in self._report.job.trusted_steps]
        if new:
            for worker in new:
                self._report.trust(worker, step_sum.version.step)
            self._report.save()  # or the next aggregator would trust them up to a later step

    # ---- what workers report ----

    def record_checksums(
        self,
        step_sum: StepSum,
        assignment: Assignment,
        answers: Answers,
        now: float,
    ) -> None:
        """Record the checksums of an assignment that has been computed for the step's sum."""
        for micro_batch, answer in answers.items():
            check = step_sum.checks.find_open(micro_batch)
            if check is not None and micro_batch in assignment.node.micro_batches:
                check.since_seconds = now if check.awaited else check.since_seconds
                check.awaited = not check.add(answer)

    def record_answer(self, step_sum: StepSum, row: Row, lease: int, answers: Answers) -> bool:
        """Record the answer of a row to a check; return False if the lease was not a check."""
        check = step_sum.checks.find_leased(row.session, lease)
        if check is None:
            return False
        step_sum.checks.release(check)
        answer = answers.get(check.micro_batch)
        if answer is None or not check.add(answer):
            check.declined.add(row.names)
        return True

    def record_failure(self, step_sum: StepSum, row: Row, lease: int, reason: str) -> bool:
        """Record that a row failed to check; return False if the lease was not a check.

        The failure does not count against its workers, since the step can do without its answer.
        """
        check = step_sum.checks.find_leased(row.session, lease)
        if check is None:
            return False
        self._decline(step_sum, check, row)
        text = f"{row.title} could not check micro-batch {check.micro_batch} of step {self._step}: {reason}"
        self._report.note("member", text)
        return True

    def is_busy(self, step_sum: StepSum, session: int) -> bool:
        """Return whether a row is computing a check."""
        return any(check.session == session for check in step_sum.checks.leased())

    def abandon(self, step_sum: StepSum, session: int) -> None:
        """Release the checks of a row that ends, so that another is asked."""
        for check in step_sum.checks.leased():
            if check.session == session:
                step_sum.checks.release(check)

    @staticmethod
    def _decline(step_sum: StepSum, check: Check, row: Row) -> None:
        step_sum.checks.release(check)
        check.declined.add(row.names)

    # ---- time ----

    def release_late(self, step_sum: StepSum, now: float) -> None:
        """Revoke checks that take too long, since the step waits for them."""
        for check in step_sum.checks.leased():
            row = self._rows[check.session]
            seconds = now - check.since_seconds
            if seconds <= self._patience_seconds(row):
                continue
            self._orders.revoke(row.session, check.lease)
            self._decline(step_sum, check, row)
            if seconds > self._timeouts.stall:
                row.note_stall(self._timeouts.stall, now)
            text = f"{row.title} has not checked micro-batch {check.micro_batch} of step "
            self._report.note(
                "member",
                f"{text}{self._step} within {seconds:.0f} s; it gets no more checks of this micro-batch",
            )

    def _patience_seconds(self, row: Row) -> float:
        """Return how long a row may compute a check; a known speed makes that shorter than a lease's limit."""
        if not row.speed:
            return self._timeouts.stall
        return max(self._timeouts.deaf, STALLED_TIMES / row.speed)

    # ---- what follows ----

    def advance(self, step_sum: StepSum, able: Sequence[Row], now: float) -> Finding | None:
        """Close the checks that can be closed, and ask idle rows about the others.

        Args:
            step_sum: the step's sum, with its checks.
            able: the rows that have the step's weights or are being sent them.
            now: the time, on the monotonic clock.

        Returns:
            The first faulty workers, which makes everything computed for this step void; None if there are none.
        """
        holders = [each for each in able if each.loaded_version == step_sum.version]
        busy = step_sum.busy_sessions() | {check.session for check in step_sum.checks.leased()}
        idle = [each for each in holders if each.session not in busy]
        for check in step_sum.checks.take_turns():
            guilty = find_faulty_workers(check.answers)
            if guilty:
                self._close(step_sum, check, CheckOutcome.FAULTY)
                step = step_sum.version.step
                trusted = min(self._report.job.trusted_steps.get(worker, step) for worker in guilty)
                return Finding(frozenset(guilty), self._describe(check), trusted)
            if check.lease:
                continue
            if check.awaited:
                if not step_sum.is_expected(check.micro_batch):
                    reason = "the worker that computed the micro-batch has sent no checksum"
                    self._close(step_sum, check, CheckOutcome.ABANDONED, reason)
                continue
            if len(check.answers) > 1 and find_difference(check.answers) is None:
                workers = tuple(sorted({worker for answer in check.answers for worker in answer.workers}))
                self._close(step_sum, check, CheckOutcome.PASSED, workers=workers)
                for worker in workers:
                    self._report.trust(worker, step_sum.version.step)
                continue
            patient = now - check.since_seconds <= self._timeouts.deaf
            candidates = able if patient else holders  # a mesh that hangs never loads the weights
            open_to = [each.names for each in candidates if each.names not in check.declined]
            wanted = choose_next(check.answers, open_to)
            if not wanted and able:  # without able workers the job waits for some anyway
                self._close_unanswered(step_sum, check)
            for row in idle:
                if row.names in wanted:
                    idle.remove(row)
                    self._ask(step_sum, check, row, now)
                    break
        return None

    def _ask(self, step_sum: StepSum, check: Check, row: Row, now: float) -> None:
        lease = self._orders.verify(row.session, step_sum.version, check.micro_batch)
        step_sum.checks.lease(check, lease, row.session, now)

    def _close_unanswered(self, step_sum: StepSum, check: Check) -> None:
        if find_difference(check.answers) is None:
            self._close(step_sum, check, CheckOutcome.ABANDONED, "no other worker can repeat the micro-batch")
        else:
            reason = "the checksums differ, each worker repeats its own, and no third worker can say which is faulty"
            self._close(step_sum, check, CheckOutcome.UNDECIDED, reason)

    def _close(
        self,
        step_sum: StepSum,
        check: Check,
        outcome: CheckOutcome,
        reason: str | None = None,
        workers: tuple[str, ...] = (),
    ) -> None:
        step_sum.checks.close(check, outcome)
        self._out.put(CheckClosed(self._report.job.id, outcome, workers))
        if reason is not None:
            self._report.note("member", f"{self._describe(check)}: the check is {outcome}: {reason}")

    @property
    def _step(self) -> int:
        """Number of the step in texts, which count from 1."""
        return self._report.job.step + 1

    def _describe(self, check: Check) -> str:
        return f"step {self._step}, micro-batch {check.micro_batch}, {describe_answers(check.answers)}"
