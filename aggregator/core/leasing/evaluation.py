"""An evaluation of one weight version: held-out batches leased like micro-batches, summed in index order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.core.sums.losses import total
from protos.cluster_pb2 import BatchLoss

LEASES_PER_WORKER = 4
"""Batches are leased in that many portions per worker, so that a faster one takes more."""
MOST_BATCHES = 1 << 20
"""Of the held-out split: what an aggregator keeps a loss of each of."""


@dataclass(frozen=True)
class EvaluationLease:
    """A portion of the batches that a worker evaluates."""

    lease: int
    session: int
    first: int
    count: int
    since_seconds: float

    @property
    def batches(self) -> range:
        """Of the held-out split."""
        return range(self.first, self.first + self.count)


class Evaluation:
    """What is known of one evaluation."""

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
        return total(result.sum for result in results) / max(1, sum(result.tokens for result in results))

    def grant(self, lease: int, session: int, workers: int, now: float) -> EvaluationLease | None:
        """The next run of batches that nobody evaluates, or None."""
        taken = {index for each in self.leases.values() for index in each.batches}
        free = [index for index in range(self.batches) if index not in taken and index not in self._results]
        if not free:
            return None
        most = -(-self.batches // (LEASES_PER_WORKER * max(1, workers)))
        count = 1
        free_set = set(free)
        while count < most and free[0] + count in free_set:
            count += 1
        lease_book = EvaluationLease(lease, session, free[0], count, now)
        self.leases[lease] = lease_book
        return lease_book

    def finish(self, lease: int, losses: Iterable[BatchLoss]) -> range | None:
        """Take a lease's results; the batches of it, None if it is not known (any more)."""
        lease_book = self.leases.get(lease)
        if lease_book is None:
            return None
        for result in losses:
            if result.index in lease_book.batches:
                self._results[result.index] = result
        del self.leases[lease]
        return lease_book.batches

    def abandon(self, session: int) -> None:
        """A worker is gone: what it was evaluating is free again."""
        self.leases = {key: each for key, each in self.leases.items() if each.session != session}

    def release(self, lease: EvaluationLease) -> None:
        """Make a lease void: its batches are free again."""
        del self.leases[lease.lease]

    def failed(self, session: int, lease: int) -> range | None:
        """A worker could not do a lease: its batches, free again; None if it has no such lease (any more)."""
        lease_book = self.leases.get(lease)
        if lease_book is None or lease_book.session != session:
            return None
        self.release(lease_book)
        return lease_book.batches

    def busy(self, session: int) -> bool:
        """Whether a worker is evaluating."""
        return any(each.session == session for each in self.leases.values())
