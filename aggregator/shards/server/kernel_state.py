"""A shard's payloads and tensors: sums under way, finished sums, and weights, gradient and rule state of its chunks.

All of it lives on the shard's kernel thread, which carries out orders in the order in which they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from aggregator.data_plane.reduction import StoredSums
from optimizer.master_tensors import MasterTensors
from protos import shards_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe
from services.transport.newest_weights import NewestWeights


@dataclass(frozen=True)
class WeightsReady:
    """A chunk of weights is ready to be sent.

    Attributes:
        header: of its version.
        chunks: how many of the shard's chunks of this version are ready with it.
    """

    header: ChunkHeader
    chunks: int


class ShardTensors:
    """The tensors of one job's chunks.

    Args:
        order: what job, and which layout.
        stripe: which chunks of it.
        newest: is given weights as soon as they are new.
        epoch: of the aggregator, for the messages of weights.
        incarnation: of this process, for the same.
        metrics: of the update of this part.
    """

    def __init__(
        self,
        order: pb.OpenPart,
        stripe: Stripe,
        newest: NewestWeights,
        *,
        epoch: int,
        incarnation: str,
        metrics: OptimizerMetrics,
    ) -> None:
        self.job = order.job
        self._stripe = stripe
        self._newest = newest
        self._epoch = epoch
        self._incarnation = incarnation
        self._metrics = metrics
        config = JobConfig.from_json(order.spec_json)
        self._wire = config.plan().wire
        self.tensors = MasterTensors(config, stripe.layout_of(Layout.loads(order.layout_json)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps, by the names in `ArrayPiece`; the arrays themselves."""
        state = {f"state/{name}": array for name, array in self.tensors.rule.state.items()}
        return {"weights": self.tensors.weights, **state}

    def stage(self, chunk: int, values: Float32Array) -> NDArray[Any]:
        """Take a finished sum as part of the step's gradient; its block sums, float64."""
        local = self._stripe.to_local(chunk)
        with timeline.span("kernel", "stage", chunk=chunk):
            self.tensors.stage(local, values)
        return self.tensors.pop_block_sums(local)

    def store_initial(self, chunk: int, values: Float32Array) -> None:
        """Take a chunk of initial weights."""
        self.tensors.store_initial(self._stripe.to_local(chunk), values)

    def update(self, order: pb.UpdatePart, made: Callable[[WeightsReady], None]) -> None:
        """Update all chunks, and have them ready to be sent one by one."""
        started = time.perf_counter()
        if order.applied:
            self.tensors.begin_update(order.grad_norm, order.learning_rate)
        for local in range(self.tensors.layout.chunks):
            with timeline.span("kernel", "update", order.step, chunk=self._stripe.to_global(local)):
                if order.applied:
                    self.tensors.update(local)
                    hit_failpoint("shard.update.mid")
                weights = self._weights(local, order.generation, order.step + 1)
            made(weights)
        self._metrics.record_update(
            self.job,
            seconds=time.perf_counter() - started,
            grad_norm=order.grad_norm,
            learning_rate=order.learning_rate,
        )

    def make_weights(self, order: pb.MakeWeights, made: Callable[[WeightsReady], None]) -> None:
        """Have the weights as they are ready to be sent."""
        for local in range(self.tensors.layout.chunks):
            made(self._weights(local, order.generation, order.step))

    def _weights(self, local: int, generation: int, step: int) -> WeightsReady:
        header = ChunkHeader(
            job=self.job,
            epoch=self._epoch,
            generation=generation,
            step=step,
            incarnation=self._incarnation,
            kind=WEIGHTS,
            dtype=self._wire.weights,
        )
        values, elements = self.tensors.chunk_weights(local), self.tensors.layout.elements
        self._newest.put(header, self._stripe.to_global(local), values, elements)
        return WeightsReady(header, local + 1)


class KernelState:
    """What the kernel thread works on: kept sums, finished sums, and the part that is open.

    Attributes:
        part: that is open.
        opening: which one it is, or was, or was to be.
    """

    def __init__(self) -> None:
        self.part: ShardTensors | None = None
        self.opening = 0
        self.sums = StoredSums(self._finished)
        self._waiting: dict[int, Float32Array] = {}  # finished sums, until they are staged

    def _finished(self, header: ChunkHeader, values: Float32Array) -> None:
        self._waiting[header.index] = values

    def take(self, chunk: int) -> Float32Array:
        """A finished sum, [elements] float32, which is forgotten here."""
        return self._waiting.pop(chunk)

    def open(self, part: ShardTensors | None) -> None:
        """Another part, or none; finished sums were for the one before."""
        self.part = part
        self._waiting.clear()

    def decided(self) -> None:
        """A step is decided: finished sums that were not staged never will be."""
        self._waiting.clear()
