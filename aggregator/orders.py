"""The orders that grant work: leases and windows, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator.evaluation import EvaluationLease
from aggregator.members import Version
from aggregator.step import Assignment
from protos import cluster_pb2 as pb
from services.tensors.ranges import to_ranges


def train_lease(job: str, version: Version, assignment: Assignment, chunks: Iterable[int]) -> pb.Lease:
    """A node to compute; `chunks` that are wanted of it, none: all."""
    return pb.Lease(
        job=job,
        generation=version.generation,
        step=version.step,
        lease=assignment.lease,
        phase=pb.TRAIN,
        first=assignment.node.first,
        count=assignment.node.count,
        chunks=to_ranges(chunks),
    )


def evaluation_lease(job: str, version: Version, granted: EvaluationLease) -> pb.Lease:
    """Held-out batches to evaluate."""
    return pb.Lease(
        job=job,
        generation=version.generation,
        step=version.step,
        lease=granted.lease,
        phase=pb.EVALUATE,
        first=granted.first,
        count=granted.count,
    )


def window(job: str, version: Version, limit: int) -> pb.Window:
    """How far the chunks of a step may be sent."""
    return pb.Window(job=job, generation=version.generation, step=version.step, limit=limit)
