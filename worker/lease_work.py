"""How the micro-batches and held-out batches of a lease are computed, by a whole model or by stages of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from protos import cluster_pb2 as pb
from services.instrumentation import timeline
from services.pipeline.exchange import Compute, FinishedPass, PassExchange
from services.pipeline.schedule import Pass
from services.tensors.kernels.arithmetic import Float32Array
from worker.node_sum import NodeSum
from worker.pass_checksums import PassChecksums
from worker.remote_step import RemoteStep


@dataclass(frozen=True)
class Sum:
    """What a lease's sum comes with.

    Attributes:
        losses: losses of the micro-batches; empty without the last range.
        count: number of tokens (or samples) that count in these losses.
        checksums: checksums of the micro-batches that the lease names for it.
    """

    losses: list[float]
    count: int
    checksums: list[pb.Checksum]


@dataclass(frozen=True)
class LeaseWork:
    """The work of one lease.

    Attributes:
        step: computes the micro-batches.
        lease: the lease.
        open_exchange: opens the exchange of the lease's arrays between ranges; entered once.
        check: callback, called before micro-batches and their backward passes; raises LeaseDropped if the lease was
            dropped.
    """

    step: RemoteStep
    lease: pb.Lease
    open_exchange: Callable[[], AbstractContextManager[PassExchange]]
    check: Callable[[], None]

    def sum(self, out: Float32Array, ready: Callable[[int], None]) -> Sum:
        """Write the sum of a TRAIN lease's gradients to an array.

        Args:
            out: [elements of this worker] float32.
            ready: callback, called with an index of `out` from which on it is complete.
        """
        lease, checksums = self.lease, self._make_checksums()
        losses: list[float] = []
        counts: list[int] = []
        node_sum = NodeSum(self.step.ranges, out, lease.count, ready)
        stop = lease.first + lease.count
        # With one range, micro-batches don't overlap: each is dropped, paused and shown by itself.
        overlapping = lease.count if self.step.all_ranges > 1 else 1
        with self.open_exchange() as exchange:
            for first in range(lease.first, stop, overlapping):
                last = first + overlapping == stop
                with timeline.span(
                    "device", "micro-batch", lease.step, job=lease.job, index=first, last=last
                ):
                    losses += self._run(first, overlapping, node_sum, counts, checksums, exchange)
        return Sum(losses, sum(counts), checksums.to_messages())

    def verify(self, scratch: Float32Array) -> list[pb.Checksum]:
        """Return the checksums that a VERIFY lease asks for; `scratch` takes the gradients."""
        checksums = self._make_checksums()
        with self.open_exchange() as exchange:
            for index in self.lease.checksums:
                node_sum = NodeSum(self.step.ranges, scratch, 1, lambda offset: None)
                with timeline.span("device", "check", self.lease.step, job=self.lease.job, index=index):
                    self._run(index, 1, node_sum, [], checksums, exchange)
        return checksums.to_messages()

    def evaluate(self) -> list[pb.BatchLoss]:
        """Return the losses of an EVALUATE lease; none without the last range."""
        lease, losses = self.lease, []
        with self.open_exchange() as exchange:
            for index in range(lease.first, lease.first + lease.count):
                self.check()
                with timeline.span("device", "evaluate", lease.step, job=lease.job, index=index):
                    found = self.step.evaluate(index, exchange)
                if found is not None:
                    losses.append(pb.BatchLoss(index=index, sum=found[0], tokens=found[1]))
        return losses

    def _make_checksums(self) -> PassChecksums:
        return PassChecksums(self.step.all_ranges, frozenset(self.lease.checksums))

    def _run(
        self,
        first: int,
        count: int,
        node_sum: NodeSum,
        counts: list[int],
        checksums: PassChecksums,
        exchange: PassExchange,
    ) -> list[float]:
        """Add gradients of micro-batches to a sum, and what counts in their losses to `counts`; return the losses."""
        self.check()
        ranges = self.step.ranges

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            self.check()
            if checksums.wants(index):
                own = ranges[range_index]
                entries = [each for each in self.step.layout.entries if own.start <= each.offset < own.stop]
                compute = checksums.watch_gradient(Pass(True, range_index, index), entries, compute)
            finished = node_sum.add_leaf(range_index, compute)
            counts.append(finished.count)
            return finished

        return self.step.micro_batches(self.lease.step, first, count, add_leaf, checksums.watch(exchange))
