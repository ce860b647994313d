"""The tensors of a plane's chunks, on its kernel thread: staged, updated, and encoded to be sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plane.checkpoint_files import name_arrays
from plane.master_tensors import MasterTensors
from plane.streams.newest_weights import NewestWeights
from protos import plane_pb2 as pb
from protos import tensors_pb2 as tensors_pb
from protos.tensors_pb2 import ChunkHeader
from services.config.job import JobConfig
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
"""Arrays of a checkpoint by their names in a `TensorFile`."""


@dataclass(frozen=True)
class WeightsReady:
    """Notice that another chunk of weights can be sent.

    Attributes:
        header: header with the fields that all chunks of the version share.
        chunks: number of the plane's chunks of this version that can be sent by now.
    """

    header: ChunkHeader
    chunks: int


class PlaneTensors:
    """Tensors of one job's chunks in this plane.

    Args:
        order: order that names the job.
        layout: layout of the whole model.
        stripe: chunks of this plane.
        newest: receives new weights, ready to be sent.
        incarnation: incarnation of this process, for the headers of weights.
        metrics: metrics of this plane's updates; None if the optimizer's core is in this process and counts them.

    Attributes:
        job: id of the job.
        elements: elements of the whole layout.
        wire: types in which the job's tensors travel.
        sends_pieces: whether they travel in pieces of chunks, since workers have stages of the job's model.
    """

    def __init__(
        self,
        order: pb.OpenPart,
        layout: Layout,
        stripe: Stripe,
        newest: NewestWeights,
        *,
        incarnation: str,
        metrics: OptimizerMetrics | None,
    ) -> None:
        self.job = order.job
        self._stripe = stripe
        self._newest = newest
        self._incarnation = incarnation
        self._metrics = metrics
        config = JobConfig.from_json(order.spec_json)
        plan = config.plan()
        self.wire, self.sends_pieces, self.elements = plan.wire, plan.stages > 1, layout.elements
        self.master = MasterTensors(config, stripe.layout_of(layout))

    def arrays(self) -> Arrays:
        """Return the arrays that a checkpoint keeps, not copied."""
        return name_arrays(self.master.weights, self.master.rule.state)

    def copy(self) -> Generator[None, None, Arrays]:
        """Copy the arrays that a checkpoint keeps, the size of one chunk in each step; return the copies."""
        copies: Arrays = {}
        for name, array in self.arrays().items():
            copies[name] = np.empty_like(array)
            for start in range(0, len(array), CHUNK_ELEMENTS):
                part = slice(start, start + CHUNK_ELEMENTS)
                copies[name][part] = array[part]
                yield
        return copies

    def stage(self, chunk: int, values: Float32Array) -> NDArray[Any]:
        """Stage a finished sum, [elements of the chunk] float32, and return its block sums, [blocks] float64."""
        with timeline.span("kernel", "stage", job=self.job, chunk=chunk):
            return self.master.stage(self._stripe.to_local(chunk), values)

    def store_initial(self, chunk: int, values: Float32Array) -> None:
        """Store a chunk of initial weights, [elements of the chunk] float32."""
        self.master.store_initial(self._stripe.to_local(chunk), values)

    def update(self, order: pb.UpdatePart, on_ready: Callable[[WeightsReady], None]) -> Iterator[None]:
        """Update all chunks, one in each step; call `on_ready` after each, when its weights can be sent."""
        started = time.perf_counter()
        if order.applied:
            beta1 = order.beta1 if order.HasField("beta1") else None
            self.master.rule.begin(order.learning_rate, order.clip, beta1=beta1)
        for local in range(self.master.layout.chunks):
            chunk = self._stripe.to_global(local)
            with timeline.span("kernel", "update", order.step, job=self.job, chunk=chunk):
                if order.applied:
                    self.master.update(local)
                hit_failpoint("plane.update.mid")
                ready = self._publish(local, order.epoch, order.generation, order.step + 1)
            on_ready(ready)
            yield
        if self._metrics is not None:
            self._metrics.record_update(
                self.job,
                seconds=time.perf_counter() - started,
                grad_norm=order.grad_norm,
                learning_rate=order.learning_rate,
            )

    def publish_weights(
        self, order: pb.MakeWeights, on_ready: Callable[[WeightsReady], None]
    ) -> Iterator[None]:
        """Encode the current weights, unless they are, one chunk in each step; call `on_ready` when it can be sent.

        Those that are may be read in shared memory now, so they must not be written again.
        """
        header = self._header(order.epoch, order.generation, order.step)
        for local in range(self.master.layout.chunks):
            header.index = self._stripe.to_global(local)
            if self._newest.has_version(header):
                on_ready(WeightsReady(header, local + 1))
            else:
                on_ready(self._publish(local, order.epoch, order.generation, order.step))
            yield

    def _publish(self, local: int, epoch: int, generation: int, step: int) -> WeightsReady:
        header = self._header(epoch, generation, step)
        values, elements = self.master.chunk_weights(local), self.master.layout.elements
        self._newest.put(header, self._stripe.to_global(local), values, elements)
        return WeightsReady(header, local + 1)

    def _header(self, epoch: int, generation: int, step: int) -> ChunkHeader:
        return ChunkHeader(
            job=self.job,
            epoch=epoch,
            generation=generation,
            step=step,
            incarnation=self._incarnation,
            kind=tensors_pb.WEIGHTS,
            dtype=self.wire.weights,
        )
