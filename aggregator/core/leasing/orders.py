"""Orders to the workers of a job and to their rows, as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aggregator.core.events import Outbox, ToWorker
from aggregator.core.leasing.evaluation import Evaluation, EvaluationLease
from aggregator.core.sums.step_sum import Assignment, StepSum
from protos import cluster_pb2 as pb
from services.pipeline.split import StageRun
from services.protocol.envelope import WorkerOrder
from services.protocol.versions import Version
from services.tensors.chunk_set import to_ranges
from services.tensors.reduction_tree import Node


class WorkerOrders:
    """Sends the workers of a job their orders.

    Args:
        job: the job's id.
        new_lease: returns a lease id that was never used before.
        send: sends an order to all workers of the row with that session.
        out: takes orders to single workers.
    """

    def __init__(
        self,
        job: str,
        new_lease: Callable[[], int],
        send: Callable[[int, WorkerOrder], None],
        out: Outbox,
    ) -> None:
        self._job = job
        self._new_lease = new_lease
        self._send = send
        self._out = out

    # ---- to a worker ----

    def join(self, worker: int, spec_json: str, stages: StageRun, build: int) -> None:
        """Order a worker to build stages of the job, by an order with a number."""
        join = pb.Join(
            job=self._job, spec_json=spec_json, first_stage=stages.first, stages=stages.count, build=build
        )
        self._out.put(ToWorker(worker, join))

    def leave(self, worker: int, reason: str) -> None:
        """Order a worker to drop the job."""
        self._out.put(ToWorker(worker, pb.Leave(job=self._job, reason=reason)))

    def leave_for_good(
        self, worker: int, reason: str, *, succeeded: bool = False, layout_hash: str = ""
    ) -> None:
        """Order a worker to drop the job, which is over or refuses it.

        Args:
            worker: session of the worker.
            reason: reason, for people.
            succeeded: whether the job has succeeded.
            layout_hash: hash of the job's layout, for a worker that has another one; empty if there is none.
        """
        leave = pb.Leave(
            job=self._job, reason=reason, final=True, succeeded=succeeded, layout_hash=layout_hash
        )
        self._out.put(ToWorker(worker, leave))

    # ---- to a row ----

    def initialise(self, session: int) -> int:
        """Lease making the initial weights to a row; return the lease's id."""
        lease = self._new_lease()
        self._send(session, pb.Lease(job=self._job, lease=lease, phase=pb.INITIALISE))
        return lease

    def train(
        self, session: int, step_sum: StepSum, assignment: Assignment, now: float, *, in_place: bool
    ) -> None:
        """Lease the missing chunks of a node to a row; do nothing if none is missing.

        Args:
            session: the row's session.
            step_sum: the step's sum.
            assignment: the assignment whose node is leased.
            now: the time, on the monotonic clock.
            in_place: whether chunks are read in its worker's memory, so that they need no send window.
        """
        missing = step_sum.coverage.missing(assignment.node)
        assignment.computed = not missing
        if not missing:
            return
        step_sum.grant(assignment, self._new_lease(), now)
        lease = self._lease(step_sum.version, assignment.lease, pb.TRAIN, assignment.node)
        if missing != [range(step_sum.coverage.chunks)]:
            lease.chunks.extend(to_ranges(missing))
        lease.checksums.extend(step_sum.checks.within(assignment.node))
        self.send_window(session, step_sum, step_sum.coverage.chunks if in_place else step_sum.window_end)
        self._send(session, lease)

    def verify(self, session: int, version: Version, micro_batch: int) -> int:
        """Lease a micro-batch to a second row, for its gradient's checksum alone; return the lease's id."""
        lease = self._lease(version, self._new_lease(), pb.VERIFY, Node(micro_batch, 1))
        lease.checksums.append(micro_batch)
        self._send(session, lease)
        return lease.lease

    def evaluate(
        self, session: int, evaluation: Evaluation, version: Version, workers: int, now: float
    ) -> None:
        """Lease the next free held-out batches to a row, if some are free."""
        granted = evaluation.grant(self._new_lease(), session, workers, now)
        if granted is not None:
            self._send(session, self._lease(version, granted.lease, pb.EVALUATE, granted))

    def _lease(self, version: Version, lease: int, phase: pb.Phase, work: Node | EvaluationLease) -> pb.Lease:
        generation, step = version
        return pb.Lease(
            job=self._job,
            generation=generation,
            step=step,
            lease=lease,
            phase=phase,
            first=work.first,
            count=work.count,
        )

    def send_window(self, session: int, step_sum: StepSum, end: int) -> None:
        """Tell a row how far it may send a step's chunks."""
        generation, step = step_sum.version
        self._send(session, pb.Window(job=self._job, generation=generation, step=step, limit=end))

    def resend(self, session: int, lease: int, chunks: Iterable[pb.Range]) -> None:
        """Order a row to send chunks of a lease again."""
        self._send(session, pb.Resend(job=self._job, lease=lease, chunks=chunks))

    def revoke(self, session: int, lease: int) -> None:
        """Order a row to stop working on a lease."""
        self._send(session, pb.Revoke(job=self._job, lease=lease))
