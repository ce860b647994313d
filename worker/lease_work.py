"""How the micro-batches and held-out batches of a lease are computed: by a whole model, or range by range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from protos import cluster_pb2 as pb
from services.instrumentation import timeline
from services.pipeline.schedule import Pass
from services.tensors.kernels.arithmetic import Float32Array
from training.pipeline.exchange import PassExchange
from training.pipeline.stages import Compute, PipelineStages
from training.range_step import FinishedPass
from worker.node_sum import Compute as ComputeLeaf
from worker.node_sum import NodeSum
from worker.pass_checksums import PassChecksums
from worker.step_interface import Step


@dataclass(frozen=True)
class Sum:
    """What a lease's sum comes with.

    Attributes:
        losses: losses of the micro-batches; empty without the last range.
        checksums: checksums of the micro-batches that the lease names for it.
    """

    losses: list[float]
    checksums: list[pb.Checksum]


@dataclass(frozen=True)
class LeaseEvents:
    """What a lease's work asks and tells its runner.

    Attributes:
        check: callback, called between micro-batches; raises LeaseDropped if the lease was dropped.
        end_micro_batch: callback, called when a micro-batch's backward passes have ended.
    """

    check: Callable[[], None]
    end_micro_batch: Callable[[], None]


class LeaseWork(Protocol):
    """Computes a lease."""

    def sum(self, lease: pb.Lease, out: Float32Array, ready: Callable[[int], None]) -> Sum:
        """Write the sum of a TRAIN lease's gradients to an array.

        Args:
            lease: the lease.
            out: [elements of this worker] float32.
            ready: callback, called with an index of `out` from which on it is complete.
        """

    def verify(self, lease: pb.Lease, scratch: Float32Array) -> list[pb.Checksum]:
        """Return the checksums that a VERIFY lease asks for; `scratch` takes the gradients."""

    def evaluate(self, lease: pb.Lease) -> list[pb.BatchLoss]:
        """Return the losses of an EVALUATE lease; none without the last range."""


class ModelWork:
    """A `LeaseWork` by a whole model, one micro-batch after another.

    Args:
        step: the model.
        events: the runner's callbacks.
    """

    def __init__(self, step: Step, events: LeaseEvents) -> None:
        self._step = step
        self._events = events

    def sum(self, lease: pb.Lease, out: Float32Array, ready: Callable[[int], None]) -> Sum:
        """Write the sum of a TRAIN lease's gradients to an array; see `LeaseWork`."""
        losses: list[float] = []
        checksums = PassChecksums(1, frozenset(lease.checksums))
        node_sum = NodeSum({0: slice(0, out.size)}, out, lease.count, ready)
        for index in range(lease.first, lease.first + lease.count):
            self._events.check()
            last = index == lease.first + lease.count - 1
            with timeline.span("device", "micro-batch", lease.step, index=index, last=last):
                losses.append(self._add_leaf(lease.step, index, node_sum, checksums))
            self._events.end_micro_batch()
        return Sum(losses, checksums.to_messages())

    def verify(self, lease: pb.Lease, scratch: Float32Array) -> list[pb.Checksum]:
        """Return the checksums that a VERIFY lease asks for; see `LeaseWork`."""
        checksums = PassChecksums(1, frozenset(lease.checksums))
        for index in lease.checksums:
            self._events.check()
            node_sum = NodeSum({0: slice(0, scratch.size)}, scratch, 1, lambda offset: None)
            with timeline.span("device", "check", lease.step, index=index):
                self._add_leaf(lease.step, index, node_sum, checksums)
        return checksums.to_messages()

    def evaluate(self, lease: pb.Lease) -> list[pb.BatchLoss]:
        """Return the losses of an EVALUATE lease; see `LeaseWork`."""
        losses = []
        for index in range(lease.first, lease.first + lease.count):
            self._events.check()
            with timeline.span("device", "evaluate", lease.step, index=index):
                total, tokens = self._step.evaluate(index)
            losses.append(pb.BatchLoss(index=index, sum=total, tokens=tokens))
        return losses

    def _add_leaf(self, step: int, index: int, node_sum: NodeSum, checksums: PassChecksums) -> float:
        compute: ComputeLeaf[float] = partial(self._step.micro_batch, step, index)
        if checksums.wants(index):
            compute = checksums.watch_gradient(Pass(True, 0, index), self._step.layout.entries, compute)
        return node_sum.add_leaf(0, compute)


class StageWork:
    """A `LeaseWork` by stages of a pipeline, whose passes overlap.

    Args:
        stages: the stages of this worker.
        open_exchange: opens the exchange of a lease's arrays with other workers; entered once for each lease.
        events: the runner's callbacks.
    """

    def __init__(
        self,
        stages: PipelineStages,
        open_exchange: Callable[[], AbstractContextManager[PassExchange]],
        events: LeaseEvents,
    ) -> None:
        self._stages = stages
        self._open_exchange = open_exchange
        self._events = events

    def sum(self, lease: pb.Lease, out: Float32Array, ready: Callable[[int], None]) -> Sum:
        """Write the sum of a TRAIN lease's gradients to an array; see `LeaseWork`."""
        checksums = PassChecksums(self._stages.all_ranges, frozenset(lease.checksums))
        node_sum = NodeSum(self._stages.ranges, out, lease.count, ready)
        with (
            self._open_exchange() as exchange,
            timeline.span("device", "micro-batch", lease.step, index=lease.first, last=True),
        ):
            losses = self._run(lease, lease.first, lease.count, node_sum, checksums, exchange)
        return Sum(losses, checksums.to_messages())

    def verify(self, lease: pb.Lease, scratch: Float32Array) -> list[pb.Checksum]:
        """Return the checksums that a VERIFY lease asks for; see `LeaseWork`."""
        checksums = PassChecksums(self._stages.all_ranges, frozenset(lease.checksums))
        with self._open_exchange() as exchange:
            for index in lease.checksums:
                node_sum = NodeSum(self._stages.ranges, scratch, 1, lambda offset: None)
                with timeline.span("device", "check", lease.step, index=index):
                    self._run(lease, index, 1, node_sum, checksums, exchange)
        return checksums.to_messages()

    def evaluate(self, lease: pb.Lease) -> list[pb.BatchLoss]:
        """Return the losses of an EVALUATE lease; see `LeaseWork`."""
        indices = range(lease.first, lease.first + lease.count)
        with (
            self._open_exchange() as exchange,
            timeline.span("device", "evaluate", lease.step, index=lease.first),
        ):
            found = list(self._stages.evaluate(self._checked(indices), exchange))
        # Without the last range there are no losses.
        return [
            pb.BatchLoss(index=index, sum=total, tokens=tokens)
            for index, (total, tokens) in zip(indices, found, strict=False)
        ]

    def _run(
        self,
        lease: pb.Lease,
        first: int,
        count: int,
        node_sum: NodeSum,
        checksums: PassChecksums,
        exchange: PassExchange,
    ) -> list[float]:
        lowest = min(self._stages.ranges)

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            self._events.check()
            if checksums.wants(index):
                own = self._stages.ranges[range_index]
                entries = [
                    each for each in self._stages.layout.entries if own.start <= each.offset < own.stop
                ]
                compute = checksums.watch_gradient(Pass(True, range_index, index), entries, compute)
            finished = node_sum.add_leaf(range_index, compute)
            if range_index == lowest:
                self._events.end_micro_batch()
            return finished

        return self._stages.micro_batches(lease.step, first, count, add_leaf, checksums.watch(exchange))

    def _checked(self, indices: range) -> Iterator[int]:
        """Yield indices as long as the lease is not dropped."""
        for index in indices:
            self._events.check()
            yield index
