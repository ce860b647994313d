"""An evaluation of one weight version: held-out batches are leased like micro-batches, losses summed in index order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.core.sums.step_sum import sum_losses
from protos.cluster_pb2 import BatchLoss

LEASES_PER_WORKER = 4
"""Number of leases the batches are split into per worker, so that a faster worker can take more of them."""
MOST_BATCHES = 1 << 20
"""Limit of held-out batches; the aggregator keeps one loss of each."""


@dataclass(frozen=True)
class EvaluationLease:
    """A run of held-out batches that a worker evaluates.

    Attributes:
        lease: The lease's id.
        session: The worker's session.
        first: The index of the first batch.
        count: The number of batches.
        since_seconds: When it was granted, on the monotonic clock.
    """

    lease: int
    session: int
    first: int
    count: int
    since_seconds: float

    @property
    def batches(self) -> range:
        """Indices of its held-out batches."""
        return range(self.first, self.first + self.count)


class Evaluation:
    """The leases and results of one evaluation.

    Attributes:
        batches: The number of held-out batches.
        leases: The leases that are under way, by id.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.leases: dict[int, EvaluationLease] = {}
        self._results: dict[int, BatchLoss] = {}

    @property
    def complete(self) -> bool:
        """Whether every batch's loss is known."""
        return len(self._results) == self.batches

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood per token, in nats."""
        results = [self._results[index] for index in range(self.batches)]
        return sum_losses(result.sum for result in results) / max(1, sum(result.tokens for result in results))

    def grant(self, lease: int, session: int, workers: int, now: float) -> EvaluationLease | None:
        """Lease the next run of free batches to a worker; return None if no batch is free."""
        leased = {index for each in self.leases.values() for index in each.batches}
        free = [index for index in range(self.batches) if index not in leased and index not in self._results]
        if not free:
            return None
        most = -(-self.batches // (LEASES_PER_WORKER * max(1, workers)))
        count = 1
        free_set = set(free)
        while count < most and free[0] + count in free_set:
            count += 1
        granted = EvaluationLease(lease, session, free[0], count, now)
        self.leases[lease] = granted
        return granted

    def finish(self, lease: int, losses: Iterable[BatchLoss]) -> range | None:
        """Record a lease's losses and return its batches; None if the lease is void."""
        finished = self.leases.get(lease)
        if finished is None:
            return None
        for result in losses:
            if result.index in finished.batches:
                self._results[result.index] = result
        del self.leases[lease]
        return finished.batches

    def abandon(self, session: int) -> None:
        """Free all batches of a worker that is gone."""
        self.leases = {key: each for key, each in self.leases.items() if each.session != session}

    def release(self, lease: EvaluationLease) -> None:
        """Make a lease void and free its batches."""
        del self.leases[lease.lease]

    def release_failed(self, session: int, lease: int) -> range | None:
        """Free the batches of a worker's failed lease and return them; None if the worker has no such lease."""
        failed = self.leases.get(lease)
        if failed is None or failed.session != session:
            return None
        self.release(failed)
        return failed.batches

    def is_busy(self, session: int) -> bool:
        """Return whether a worker is evaluating."""
        return any(each.session == session for each in self.leases.values())
