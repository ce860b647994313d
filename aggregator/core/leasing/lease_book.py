"""The leases of a running job's rows: initial weights, gradients of a step and their checks, evaluations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aggregator.core.events import Outbox
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.leasing.planning import describe_range
from aggregator.core.leasing.stalls import Stalls
from aggregator.core.rows.row import Row, speeds
from aggregator.core.sums.plane_orders import drop_sum
from aggregator.core.sums.step_sum import Assignment, StepSum
from aggregator.core.verification.checks import JobChecks
from protos.jobs_pb2 import Wait
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.errors import Refusal
from services.protocol.versions import Version
from services.tensors.chunk_set import ChunkSet, to_ranges
from services.timeouts import Timeouts


@dataclass
class Initialisation:
    """The lease under which one row makes the initial weights.

    Attributes:
        lease: the lease's id.
        session: the row's session.
        since_seconds: when it was granted, on the monotonic clock.
        described: whether it has sent the layout of its chunks.
        missing: the chunks that have not come; None until the optimizer has the layout and asks for them.
    """

    lease: int
    session: int
    since_seconds: float
    described: bool = False
    missing: ChunkSet | None = None

    @property
    def awaits_worker(self) -> bool:
        """Whether the row owes the layout or a chunk; otherwise the optimizer has to go on."""
        return not self.described or bool(self.missing)

    @property
    def next_chunk(self) -> int | None:
        """First chunk that the row owes; None while it makes the weights."""
        return self.missing.runs()[0].start if self.missing else None


class LeaseBook:
    """Leases of all kinds: which row has them, and which row gets them next.

    Args:
        timeouts: the cluster's timeouts.
        rows: the job's rows, by session.
        orders: sends leases and revocations.
        report: the job's record and log.
        out: takes the effects on stored sums.
        checked: whether some micro-batches are computed twice.

    Attributes:
        initialisation: the lease of the initial weights; None if no row has it.
        step_sum: the sum of the step in training; None in other phases.
        evaluation: the evaluation under way; None in other phases.
        checks: the checks of the step's micro-batches.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        rows: Mapping[int, Row],
        orders: WorkerOrders,
        report: JobReport,
        out: Outbox,
        *,
        checked: bool,
    ) -> None:
        self.initialisation: Initialisation | None = None
        self.step_sum: StepSum | None = None
        self.evaluation: Evaluation | None = None
        self.checks = JobChecks(timeouts, rows, orders, report, out, enabled=checked)
        self._stalls = Stalls(timeouts, rows, orders, report)
        self._rows = rows
        self._orders = orders
        self._report = report
        self._out = out

    # ---- questions ----

    def able_rows(self, *, leaving: bool = False) -> list[Row]:
        """Return the rows that can be given work; stalled and hanging ones only if there are no others.

        Args:
            leaving: whether rows count that go at the COMMIT. They may check the step until then.
        """
        able = [row for row in self._rows.values() if row.able and (leaving or not row.leaves)]
        return [row for row in able if not (row.stalled or row.hangs)] or able

    def find_last(self) -> str:
        """Return the name of the row whose gradient has come last; empty if it is gone, or none has come."""
        row = None if self.step_sum is None else self._rows.get(self.step_sum.last_session)
        return "" if row is None else row.name

    def is_computing(self, row: Row) -> bool:
        """Return whether a row has something to compute now."""
        initialising = self.initialisation is not None and self.initialisation.session == row.session
        training = self.step_sum is not None and (
            self.step_sum.is_busy(row.session) or self.checks.is_busy(self.step_sum, row.session)
        )
        evaluating = self.evaluation is not None and self.evaluation.is_busy(row.session)
        return initialising or training or evaluating

    def holds_lease(self, row: Row) -> bool:
        """Return whether a row has a lease of any kind, computed or not."""
        session = row.session
        initialising = self.initialisation is not None and self.initialisation.session == session
        step_sum, evaluation = self.step_sum, self.evaluation
        training = step_sum is not None and (
            any(each.lease for each in step_sum.of_session(session)) or self.checks.is_busy(step_sum, session)
        )
        return initialising or training or (evaluation is not None and evaluation.is_busy(session))

    def find_late(self, now: float) -> set[int]:
        """Return the sessions of rows that take too long over a lease, whether or not others are idle."""
        late = self._stalls.find_late(self.step_sum, self.evaluation, now)
        current = self.initialisation
        if (
            current is not None
            and current.awaits_worker
            and self._stalls.is_late(current.session, current.since_seconds, 0, now)
        ):
            late.add(current.session)
        return late

    def waits(self, now: float) -> list[Wait]:
        """Return what rows owe the job.

        A step waits for gradients of the next chunk in the agreed order, which starts at the layout's end, and for
        the checks under way. A wait for initial weights names a chunk once the worker has made them.
        """
        waits: list[Wait] = []

        def add(what: str, session: int, since_seconds: float, bucket: int | None = None) -> None:
            peer, seconds = self._rows[session].name, now - since_seconds
            job = self._report.job
            waits.append(
                Wait(
                    role="worker",
                    peer=peer,
                    job=job.id,
                    step=job.step,
                    bucket=bucket,
                    what=what,
                    seconds=seconds,
                )
            )

        current = self.initialisation
        if current is not None and current.awaits_worker:
            add("initial weights", current.session, current.since_seconds, current.next_chunk)
        step_sum = self.step_sum
        if step_sum is not None and (chunk := step_sum.next_chunk) is not None:
            for each in step_sum.assignments:
                if each.session is not None and not step_sum.coverage.covers(each.node, chunk):
                    node = describe_range("micro-batch", each.node.first, each.node.count)
                    add(f"gradients of {node}", each.session, each.since_seconds, chunk)
        if step_sum is not None:
            for check in step_sum.checks.leased():
                add(f"checksum of micro-batch {check.micro_batch}", check.session, check.since_seconds)
        if self.evaluation is not None:
            for lease in self.evaluation.leases.values():
                batches = describe_range("batch", lease.first, lease.count)
                add(f"losses of {batches}", lease.session, lease.since_seconds)
        return waits

    def rows_of(self, step_sum: StepSum) -> list[Row]:
        """Return the rows that work on a step."""
        return [self._rows[session] for session in step_sum.sessions() if session in self._rows]

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""
        if header.kind == INITIAL_WEIGHTS:
            if self.find_initialisation(session, header.lease) is None:
                return Refusal(
                    f"the chunk has initial weights, but lease {header.lease} does not ask for them"
                )
            return None
        if header.kind != GRADIENT:
            return Refusal(f"the chunk's kind is {header.kind}, expected a gradient or initial weights")
        version = Version(header.generation, header.step)
        if self.step_sum is None or self.step_sum.version != version:
            job = self._report.job
            return Refusal(
                f"the chunk belongs to generation {version.generation}, step {version.step}; the job is in generation "
                f"{job.generation} at step {job.step}, phase {job.phase}"
            )
        if self.find_assignment(session, header.lease) is None:
            return Refusal(f"the chunk's lease is {header.lease}, which this worker does not hold now")
        return None

    def find_initialisation(self, session: int, lease: int) -> Initialisation | None:
        """Return the initialisation if this row has it under that lease."""
        current = self.initialisation
        found = current is not None and (current.session, current.lease) == (session, lease)
        return current if found else None

    def find_assignment(self, session: int, lease: int) -> Assignment | None:
        """Return what this row computes for the step's sum under that lease; None if the lease is void."""
        assignment = self.step_sum.by_lease(lease) if self.step_sum is not None else None
        return assignment if assignment is not None and assignment.session == session else None

    def accept_gradients(
        self, row: Row, header: ChunkHeader, chunks: Collection[int], *, in_place: bool
    ) -> tuple[StepSum, Assignment]:
        """Return the sum and the assignment that chunks of a gradient belong to; `check_chunk` must have passed them.

        A row whose chunks are read in place for the first time may send without a window from now on.
        """
        step_sum, assignment = self.step_sum, self.find_assignment(row.session, header.lease)
        assert step_sum is not None and assignment is not None
        if in_place and not row.in_place:
            self._orders.send_window(row.session, step_sum, step_sum.coverage.chunks)
        row.in_place = in_place
        if 0 in chunks:  # the last one in the agreed order, with which findings come
            step_sum.note_findings(assignment, row.name, header.findings)
        return step_sum, assignment

    # ---- granting ----

    def begin_step(self, step_sum: StepSum, now: float, *, plan: bool) -> None:
        """Go on to a step; with `plan`, share it out at once among the rows that receive its weights."""
        self.step_sum = step_sum
        receivers = [row for row in self.able_rows() if row.receives_weights] if plan else []
        step_sum.distribute(speeds(receivers), now)
        planned = step_sum.sessions()
        for row in receivers:
            if row.session not in planned:
                for worker in row.workers:
                    worker.record_idle_step()

    def grant_initialisation(self, now: float) -> None:
        """Lease the initial weights to the first able row, unless a row has that lease."""
        able = self.able_rows()
        if self.initialisation is None and able:
            session = able[0].session
            self.initialisation = Initialisation(self._orders.initialise(session), session, now)

    def grant_assignments(self, step_sum: StepSum, now: float) -> None:
        """Plan a step's orphans, then lease the assignments of rows that receive or have its weights."""
        able = self.able_rows()
        self._plan_orphans(step_sum, able, now)
        # A row starts with the first chunks of the weights, so it gets its lease before it has them all. Orphans
        # go to workers that have all of them.
        sessions = {row.session for row in able if row.receives_weights}
        granted = [each for each in step_sum.assignments if each.session in sessions and not each.lease]
        self.checks.begin_trust(
            step_sum, (self._rows[each.session] for each in granted if each.session is not None)
        )
        for assignment in granted:
            if assignment.session is not None:
                row = self._rows[assignment.session]
                self._orders.train(row.session, step_sum, assignment, now, in_place=row.in_place)

    def _plan_orphans(self, step_sum: StepSum, able: Iterable[Row], now: float) -> None:
        """Plan orphans for idle rows; leave to busy ones what they will soon be free for.

        Until a row has done its part of the step, those that have yet to get weights, such as at a job's start, are
        left theirs, too. Else the first one would take the whole step.
        """
        busy_sessions = step_sum.busy_sessions()
        idle = [
            row for row in able if row.loaded_version == step_sum.version and row.session not in busy_sessions
        ]
        if not idle or not step_sum.orphans():
            return
        busy = [row for row in able if row.receives_weights and row.session in busy_sessions]
        begun = any(each.computed for each in step_sum.assignments)
        coming = [] if begun else [row for row in self._rows.values() if row.prepares]
        known = speeds([*idle, *busy, *coming])
        left = {each.session: step_sum.busy_seconds(each.session, known[each.session], now) for each in busy}
        step_sum.distribute(known, now, {**left, **{each.session: 0.0 for each in coming}})
        if coming and not any(step_sum.of_session(each.session) for each in idle):
            step_sum.distribute(
                speeds([*idle, *busy]), now, left
            )  # or all might wait for rows that never come

    def grant_evaluation(self, evaluation: Evaluation, version: Version, now: float) -> None:
        """Lease held-out batches to idle rows that have the weights."""
        holders = [row for row in self.able_rows() if row.loaded_version == version]
        for row in holders:
            if not evaluation.is_busy(row.session):
                self._orders.evaluate(row.session, evaluation, version, len(holders), now)

    def send_windows(self, step_sum: StepSum) -> None:
        """Tell the senders of a step's chunks how far they may send; chunks read in place need no window."""
        for session in sorted(step_sum.sessions()):
            if not self._rows[session].in_place:
                self._orders.send_window(session, step_sum, step_sum.window_end)

    def reconcile(self, step_sum: StepSum, missing: ChunkSet) -> None:
        """Adjust a step's coverage to the chunks that the optimizer lacks, and have lost ones sent again."""
        for chunk, node in step_sum.coverage.mark_all_done_except(missing):
            self._out.put(drop_sum(self._report.job.id, [chunk], node))
        end_before = step_sum.window_end
        reopened = to_ranges(step_sum.reopen(missing).runs())
        if step_sum.widen() or step_sum.window_end != end_before:
            self.send_windows(step_sum)
        for each in step_sum.assignments:
            if reopened and each.lease and each.session is not None:
                self._orders.resend(each.session, each.lease, reopened)

    # ---- taking back ----

    def clear_step(self) -> None:
        """Forget the step's sum and the evaluation."""
        self.step_sum = self.evaluation = None

    def end_initialisation(self) -> None:
        """Revoke the lease of the initial weights, if a row has it."""
        current, self.initialisation = self.initialisation, None
        if current is not None:
            self._orders.revoke(current.session, current.lease)

    def release_failed(self, session: int, lease: int, now: float) -> range | None:
        """Release a failed lease and return its micro-batches or batches; None if the row has no such lease."""
        if self.find_initialisation(session, lease) is not None:
            self.initialisation = None
            return range(1)
        assignment = self.find_assignment(session, lease)
        if self.step_sum is not None and assignment is not None:
            self.step_sum.release(assignment, now)
            return assignment.node.micro_batches
        return self.evaluation.release_failed(session, lease) if self.evaluation is not None else None

    def abandon(self, row: Row, now: float) -> None:
        """Release all leases of a row that ends, or whose worker is refused."""
        if self.step_sum is not None:
            self.step_sum.abandon(row.session, now)
            self.checks.abandon(self.step_sum, row.session)
        if self.evaluation is not None:
            self.evaluation.abandon(row.session)
        if self.initialisation is not None and self.initialisation.session == row.session:
            self.initialisation = None

    def release_late(self, version: Version | None, now: float) -> None:
        """Release leases that take too long, if an idle row has the weights to take them over."""
        if self.step_sum is not None:
            self.checks.release_late(self.step_sum, now)
        holders = [each for each in self.able_rows() if version is None or each.loaded_version == version]
        if all(self.is_computing(row) for row in holders):
            return
        current = self.initialisation
        if (
            current is not None
            and current.awaits_worker
            and self._stalls.mark_if_stalled(current.session, current.since_seconds, 0, now)
        ):
            self.end_initialisation()
        if self.step_sum is not None:
            self._stalls.release_gradients(self.step_sum, now)
        if self.evaluation is not None:
            self._stalls.release_losses(self.evaluation, now)
