"""Whom the running job waits for: role, peer, step, bucket and time of each wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.core.leasing.evaluation import Evaluation
from aggregator.core.leasing.initialisation import Initialisation
from aggregator.core.membership.members import Member
from aggregator.core.sums.step_sum import StepSum
from protos.jobs_pb2 import Job, Wait


def waits_of(
    job: Job,
    initialisation: Initialisation | None,
    step_sum: StepSum | None,
    evaluation: Evaluation | None,
    members: Mapping[int, Member],
    now: float,
) -> list[Wait]:
    """The leases that workers owe to a job.

    Of a step's sum they are those that owe something of its next bucket in the agreed order (last of the layout first),
    and the checks that are under way.
    """
    waits: list[Wait] = []

    def owed(what: str, session: int, since_seconds: float, bucket: int | None = None) -> None:
        peer, seconds = members[session].name, now - since_seconds
        waits.append(
            Wait(
                role="worker", peer=peer, job=job.id, step=job.step, bucket=bucket, what=what, seconds=seconds
            )
        )

    if initialisation is not None:
        owed("initial weights", initialisation.session, initialisation.since_seconds)
    if step_sum is not None and not step_sum.coverage.complete:
        coverage = step_sum.coverage
        bucket = coverage.chunks - 1 - coverage.done_in_order(0)
        for each in step_sum.assignments:
            if each.session is not None and not coverage.covers(each.node, bucket):
                node = span("micro-batch", each.node.first, each.node.count)
                owed(f"gradients of {node}", each.session, each.since_seconds, bucket)
    if step_sum is not None:
        for check in step_sum.checks.values():
            if check.lease:
                owed(f"checksum of micro-batch {check.micro_batch}", check.session, check.since_seconds)
    if evaluation is not None:
        for lease in evaluation.leases.values():
            owed(f"losses of {span('batch', lease.first, lease.count)}", lease.session, lease.since_seconds)
    return waits


class OptimizerWait:
    """Since when the optimizer owes the running job what it owes."""

    def __init__(self) -> None:
        self._owed: Wait | None = None
        self._since_seconds = 0.0

    def look(self, owed: Wait | None, now: float) -> None:
        """Take a look at what it owes: of which job and step, without the time; None: nothing."""
        if owed != self._owed:
            self._owed, self._since_seconds = owed, now

    def waits(self, owed: Wait | None, now: float) -> list[Wait]:
        """The wait for it, if it owes this still: none that began after the last look."""
        if owed is None or owed != self._owed:
            return []
        wait = Wait(seconds=now - self._since_seconds)
        wait.MergeFrom(owed)
        return [wait]


def span(what: str, first: int, count: int) -> str:
    """Micro-batches or batches, as people read them."""
    return f"{what} {first}" if count == 1 else f"{what}es {first}-{first + count - 1}"
