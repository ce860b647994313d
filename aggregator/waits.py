"""Whom the running job waits for: peer, step, bucket and time of each wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.evaluation import Evaluation
from aggregator.members import Member
from aggregator.step import StepSum
from protos.jobs_pb2 import Wait


def waits_of(
    job: str,
    step: int,
    step_sum: StepSum | None,
    evaluation: Evaluation | None,
    members: Mapping[int, Member],
    now: float,
) -> list[Wait]:
    """The leases that are owed to a job, the longest wait first.

    Of a step's sum they are those that owe something of its next bucket in the agreed order (last of the layout first),
    and the checks that are under way.
    """
    waits = []
    if step_sum is not None and not step_sum.coverage.complete:
        coverage = step_sum.coverage
        bucket = coverage.chunks - 1 - coverage.done_in_order(0)
        for each in step_sum.assignments:
            if each.session is None or coverage.covers(each.node, bucket):
                continue
            what = f"gradients of {span('micro-batch', each.node.first, each.node.count)}"
            peer, seconds = members[each.session].name, now - each.since_seconds
            waits.append(Wait(peer=peer, job=job, step=step, bucket=bucket, what=what, seconds=seconds))
    if step_sum is not None:
        for check in step_sum.checks.values():
            if check.lease:
                what = f"checksum of micro-batch {check.micro_batch}"
                peer, seconds = members[check.session].name, now - check.since_seconds
                waits.append(Wait(peer=peer, job=job, step=step, what=what, seconds=seconds))
    if evaluation is not None:
        for lease in evaluation.leases.values():
            what = f"losses of {span('batch', lease.first, lease.count)}"
            peer, seconds = members[lease.session].name, now - lease.since_seconds
            waits.append(Wait(peer=peer, job=job, step=step, what=what, seconds=seconds))
    return sorted(waits, key=lambda wait: -wait.seconds)


def span(what: str, first: int, count: int) -> str:
    """Micro-batches or batches, as people read them."""
    return f"{what} {first}" if count == 1 else f"{what}es {first}-{first + count - 1}"
