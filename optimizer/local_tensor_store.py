"""The optimizer's tensors in its own process, with one kernel thread for all arithmetic.

The kernel thread runs one task after the other, so the tensors change in the order of the calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from optimizer.core import events as ev
from optimizer.master_tensors import MasterTensors
from optimizer.tensor_store import Save, TensorStoreCallbacks, to_operation_failed, to_save_failed
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import (
    Checkpoint,
)
from services.config.job import JobConfig
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.backlog import Backlog
from services.runtime.handover import Handover
from services.runtime.metrics import OptimizerMetrics
from services.tasks import call_in, start_call
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.transport.data.newest_weights import NewestWeights


class LocalTensorStore:
    """A `TensorStore` in this process.

    Args:
        callbacks: what the store calls on the event loop.
        newest: receives new weights, ready to be sent.
        incarnation: incarnation of this process, for the headers of weights.
        metrics: metrics of the optimizer.
    """

    def __init__(
        self,
        callbacks: TensorStoreCallbacks,
        newest: NewestWeights,
        *,
        incarnation: str,
        metrics: OptimizerMetrics,
    ) -> None:
        self._callbacks = callbacks
        self._newest = newest
        self._incarnation = incarnation
        self._metrics = metrics
        self._job = ""
        self._tensors: MasterTensors | None = None
        self._kernel = ThreadPoolExecutor(1, "kernel")
        self._backlog = Backlog()
        self._loop = asyncio.get_running_loop()
        self._updated = Handover(callbacks.updated)

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Allocate the tensors of a job; those of the previous job are freed first."""
        self._job, self._tensors = job, None
        self._tensors = await call_in(self._kernel, make_tensors, config, layout, checkpoint)

    def drop(self) -> None:
        """Free the tensors."""
        self._tensors = None

    def close(self) -> None:
        """Stop the kernel thread."""
        self._kernel.shutdown(cancel_futures=True)

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Stage a chunk of the step's sum on the kernel thread."""
        assert self._tensors is not None and values is not None
        self._backlog.add()
        self._on_kernel(self._stage, self._tensors, chunk, values)

    async def wait_for_room(self) -> None:
        """Wait until few chunks wait for the kernel thread, which may be busy with a copy for a checkpoint."""
        await self._backlog.wait_for_room()

    def unstage(self) -> None:
        """Do nothing: the next chunks overwrite the staged ones."""

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Store a chunk of initial weights on the kernel thread."""
        assert self._tensors is not None and values is not None
        self._backlog.add()
        self._on_kernel(self._store_initial, self._tensors, chunk, values)

    def measure(self, effect: ev.Measure) -> None:
        """Measure the staged gradient on the kernel thread."""
        self._on_kernel(self._measure, self._tensors, effect)

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Update all weights on the kernel thread."""
        self._on_kernel(self._update, self._tensors, effect, header)

    async def publish(self, header: ChunkHeader) -> None:
        """Encode the current weights of a chunk again on the kernel thread."""
        assert self._tensors is not None
        # No later update runs first: the core would have named the later version in the header.
        await call_in(self._kernel, self._publish, self._tensors, header, header.index)

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Copy weights and state on the kernel thread, so that the next update does not wait for the disk."""
        self._on_kernel(self._snapshot, self._tensors, effect, save)

    def _on_kernel(self, work: Callable[..., None], *arguments: Any) -> None:
        start_call(self._kernel, f"job {self._job}", self._guarded, self._job, work, *arguments)

    def _guarded(self, job: str, work: Callable[..., None], *arguments: Any) -> None:
        """Run work so that an error fails the job, not the process."""
        try:
            work(*arguments)
        except Exception as error:
            self._loop.call_soon_threadsafe(self._callbacks.report, to_operation_failed(job, error))

    # ---- on the kernel thread ----

    def _store_initial(self, tensors: MasterTensors, chunk: int, values: Float32Array) -> None:
        self._backlog.remove()
        tensors.store_initial(chunk, values)

    def _stage(self, tensors: MasterTensors, chunk: int, values: Float32Array) -> None:
        self._backlog.remove()
        with timeline.span("kernel", "stage", chunk=chunk):
            tensors.stage(chunk, values)

    def _measure(self, tensors: MasterTensors, effect: ev.Measure) -> None:
        with timeline.span("kernel", "measure", effect.step):
            measured = ev.Measured(effect.job, effect.step, *tensors.measure(effect.step))
        self._loop.call_soon_threadsafe(self._callbacks.report, measured)

    def _update(self, tensors: MasterTensors, effect: ev.Update, header: ChunkHeader) -> None:
        started = time.perf_counter()
        if effect.applied:
            tensors.begin_update(effect.norm, effect.learning_rate, effect.step)
        for chunk in range(tensors.layout.chunks):
            with timeline.span("kernel", "update", effect.step, chunk=chunk):
                if effect.applied:
                    tensors.update(chunk)
                hit_failpoint("optimizer.update.mid")
                self._publish(tensors, header, chunk)
            self._updated.put(ev.Updated(effect.job, effect.step, chunk))
        self._metrics.record_update(
            effect.job,
            seconds=time.perf_counter() - started,
            grad_norm=effect.norm,
            learning_rate=effect.learning_rate,
        )

    def _publish(self, tensors: MasterTensors, header: ChunkHeader, chunk: int) -> None:
        header.incarnation = self._incarnation
        self._newest.put(header, chunk, tensors.chunk_weights(chunk), tensors.layout.elements)

    def _snapshot(self, tensors: MasterTensors, effect: ev.Snapshot, save: Save) -> None:
        try:
            copies = tensors.copy()
            hit_failpoint("optimizer.snapshot")
            save(*copies)
        except Exception as error:  # for example, not enough memory for a copy
            self._loop.call_soon_threadsafe(self._callbacks.report, to_save_failed(effect, error))


def make_tensors(config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> MasterTensors:
    """Return the tensors of a job: zeros, or those of a checkpoint.

    Raises:
        Refused: the checkpoint's state is not that of this job's update rule.
    """
    tensors = MasterTensors(config, layout)
    if checkpoint is not None:
        tensors.restore(checkpoint.weights, checkpoint.optimizer_state)
    return tensors
