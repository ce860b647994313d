"""An evaluation of one weight version: held-out batches are leased like micro-batches, losses summed in index order."""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.core.sums.step_sum import sum_losses
from protos.cluster_pb2 import BatchLoss
from services.protocol.plan import MOST_BATCHES_PER_LEASE

LEASES_PER_WORKER = 4
"""Number of leases the batches are split into per worker, so that a faster worker can take more of them."""


@dataclass(frozen=True)
class EvaluationLease:
    """A run of held-out batches that a row evaluates.

    Attributes:
        lease: the lease's id.
        session: the row's session.
        first: the index of the first batch.
        count: the number of batches.
        since_seconds: when it was granted, on the monotonic clock.
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
        batches: the number of held-out batches.
        leases: the leases that are under way, by id.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.leases: dict[int, EvaluationLease] = {}
        self._free = [range(batches)] if batches else []  # in order; neither leased nor known
        self._sums = array("d", bytes(8 * batches))
        self._tokens = array("Q", bytes(8 * batches))
        self._known = bytearray(batches)
        self._unknown = batches

    @property
    def complete(self) -> bool:
        """Whether every batch's loss is known."""
        return not self._unknown

    @property
    def evaluated(self) -> int:
        """Number of batches whose loss is known."""
        return self.batches - self._unknown

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood per token, in nats."""
        return sum_losses(self._sums) / max(1, sum(self._tokens))

    def grant(self, lease: int, session: int, workers: int, now: float) -> EvaluationLease | None:
        """Lease the next run of free batches to a row; return None if no batch is free."""
        if not self._free:
            return None
        run = self._free.pop(0)
        share = -(-self.batches // (LEASES_PER_WORKER * max(1, workers)))
        count = min(share, len(run), MOST_BATCHES_PER_LEASE)
        if run[count:]:
            self._free.insert(0, run[count:])
        granted = EvaluationLease(lease, session, run.start, count, now)
        self.leases[lease] = granted
        return granted

    def finish(self, lease: int, losses: Iterable[BatchLoss]) -> range | None:
        """Record a lease's losses and return its batches; None if the lease is void."""
        finished = self.leases.pop(lease, None)
        if finished is None:
            return None
        batches = finished.batches
        for result in losses:
            index = result.index
            if index in batches:
                self._unknown -= not self._known[index]
                self._known[index] = 1
                self._sums[index], self._tokens[index] = result.sum, result.tokens
        self._add_free(batches)
        return batches

    def _add_free(self, batches: range) -> None:
        """Count batches as free, except those whose losses are known."""
        first = batches.start
        while (first := self._known.find(0, first, batches.stop)) >= 0:
            stop = self._known.find(1, first, batches.stop)
            run = range(first, stop if stop >= 0 else batches.stop)
            place = bisect(self._free, run.start, key=lambda other: other.start)
            if place < len(self._free) and self._free[place].start == run.stop:
                run = range(run.start, self._free.pop(place).stop)
            if place and self._free[place - 1].stop == run.start:
                place -= 1
                run = range(self._free.pop(place).start, run.stop)
            self._free.insert(place, run)
            first = run.stop

    def abandon(self, session: int) -> None:
        """Free all batches of a row that ends."""
        for lease in [each for each in self.leases.values() if each.session == session]:
            self.release(lease)

    def release(self, lease: EvaluationLease) -> None:
        """Make a lease void and free its batches."""
        del self.leases[lease.lease]
        self._add_free(lease.batches)

    def release_failed(self, session: int, lease: int) -> range | None:
        """Free the batches of a row's failed lease and return them; None if the row has no such lease."""
        failed = self.leases.get(lease)
        if failed is None or failed.session != session:
            return None
        self.release(failed)
        return failed.batches

    def is_busy(self, session: int) -> bool:
        """Return whether a row is evaluating."""
        return any(each.session == session for each in self.leases.values())
