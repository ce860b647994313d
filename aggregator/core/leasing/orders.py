"""What the workers of a job are told, as messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aggregator.core.events import Outbox, ToWorker
from aggregator.core.leasing.evaluation import Evaluation, EvaluationLease
from aggregator.core.sums.step_sum import Assignment, StepSum
from protos import cluster_pb2 as pb
from services.protocol.envelope import WorkerOrder
from services.protocol.versions import Version
from services.tensors.chunk_ranges import to_ranges
from services.tensors.reduction_tree import Node


class WorkerOrders:
    """Grants leases, and takes them back.

    Args:
        job: id of the job.
        new_lease: makes a lease id that was never used before.
        out: takes the orders.
    """

    def __init__(self, job: str, new_lease: Callable[[], int], out: Outbox) -> None:
        self.job = job
        self._new_lease = new_lease
        self._out = out

    def _tell(self, session: int, body: WorkerOrder) -> None:
        self._out.put(ToWorker(session, body))

    def join(self, session: int, spec_json: str) -> None:
        """Build the job."""
        self._tell(session, pb.Join(job=self.job, spec_json=spec_json))

    def leave(self, session: int, reason: str) -> None:
        """Drop the job."""
        self._tell(session, pb.Leave(job=self.job, reason=reason))

    def initialise(self, session: int) -> int:
        """Make the initial weights; returns the lease."""
        lease = self._new_lease()
        self._tell(session, pb.Lease(job=self.job, lease=lease, phase=pb.INITIALISE))
        return lease

    def train(
        self, session: int, step_sum: StepSum, assignment: Assignment, now: float, *, in_place: bool
    ) -> None:
        """Compute what is missing of a node, if anything is; chunks read in place need no window."""
        missing = step_sum.coverage.missing(assignment.node)
        assignment.computed = not missing
        if not missing:
            return
        assignment.lease, assignment.since_seconds = self._new_lease(), now
        lease = self._lease(step_sum.version, assignment.lease, pb.TRAIN, assignment.node)
        if len(missing) < step_sum.coverage.chunks:
            lease.chunks.extend(to_ranges(missing))
        lease.checksums.extend(step_sum.checked_in(assignment.node))
        self.window(session, step_sum, step_sum.coverage.chunks if in_place else step_sum.limit)
        self._tell(session, lease)

    def verify(self, session: int, version: Version, micro_batch: int) -> int:
        """Compute a micro-batch once more, for its gradient's checksum alone; returns the lease."""
        lease = self._lease(version, self._new_lease(), pb.VERIFY, Node(micro_batch, 1))
        lease.checksums.append(micro_batch)
        self._tell(session, lease)
        return lease.lease

    def evaluate(
        self, session: int, evaluation: Evaluation, version: Version, workers: int, now: float
    ) -> None:
        """Evaluate the next held-out batches that nobody evaluates, if there are any."""
        lease_book = evaluation.grant(self._new_lease(), session, workers, now)
        if lease_book is not None:
            self._tell(session, self._lease(version, lease_book.lease, pb.EVALUATE, lease_book))

    def _lease(self, version: Version, lease: int, phase: pb.Phase, part: Node | EvaluationLease) -> pb.Lease:
        generation, step = version
        return pb.Lease(
            job=self.job,
            generation=generation,
            step=step,
            lease=lease,
            phase=phase,
            first=part.first,
            count=part.count,
        )

    def window(self, session: int, step_sum: StepSum, limit: int) -> None:
        """How far the chunks of a step may be sent."""
        generation, step = step_sum.version
        self._tell(session, pb.Window(job=self.job, generation=generation, step=step, limit=limit))

    def resend(self, session: int, lease: int, chunks: Iterable[pb.Range]) -> None:
        """Send these chunks of a lease again."""
        self._tell(session, pb.Resend(job=self.job, lease=lease, chunks=chunks))

    def revoke(self, session: int, lease: int) -> None:
        """Stop working on a lease."""
        self._tell(session, pb.Revoke(job=self.job, lease=lease))
