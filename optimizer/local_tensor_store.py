"""The optimizer's tensors in its own process: arithmetic on one kernel thread.

The kernel thread takes one task after the other, so the tensors change in the order in which the core asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from optimizer.core import events as ev
from optimizer.master_tensors import MasterTensors
from optimizer.tensor_store import Save, TensorStoreEvents
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints import Checkpoint
from services.config.job import JobConfig
from services.errors import TiermeshError, describe_internal_error
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.backlog import Backlog
from services.runtime.handover import Handover
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.transport.newest_weights import NewestWeights

log = logging.getLogger("tiermesh.optimizer")


class LocalTensorStore:
    """A `TensorStore`.

    Args:
        events: takes what is told.
        newest: is given weights as soon as they are new.
        incarnation: of this process, for the messages of weights.
        metrics: of the optimizer.
    """

    def __init__(
        self, events: TensorStoreEvents, newest: NewestWeights, *, incarnation: str, metrics: OptimizerMetrics
    ) -> None:
        self._events = events
        self._newest = newest
        self._incarnation = incarnation
        self._metrics = metrics
        self._job = ""
        self._tensors: MasterTensors | None = None
        self._kernel = ThreadPoolExecutor(1, "kernel")
        self._backlog = Backlog()
        self._loop = asyncio.get_running_loop()
        self._updated = Handover(events.updated)

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Make room; what was held before is freed first."""
        self._job, self._tensors = job, None
        self._tensors = await self._loop.run_in_executor(
            self._kernel, make_tensors, config, layout, checkpoint
        )

    def drop(self) -> None:
        """Forget the tensors."""
        self._tensors = None

    def close(self) -> None:
        """Stop the thread."""
        self._kernel.shutdown(cancel_futures=True)

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Take a chunk of the step's sum."""
        assert self._tensors is not None and values is not None
        self._backlog.add()
        self._on_kernel(self._stage, self._tensors, chunk, values)

    async def room(self) -> None:
        """While the kernel thread copies for a checkpoint, say, no more comes in than it may find waiting."""
        await self._backlog.wait_for_room()

    def unstage(self) -> None:
        """Nothing to do: a chunk is staged over what was."""

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Take a chunk of initial weights."""
        assert self._tensors is not None and values is not None
        self._backlog.add()
        self._on_kernel(self._store_initial, self._tensors, chunk, values)

    def measure(self, effect: ev.Measure) -> None:
        """Measure the staged gradient."""
        self._on_kernel(self._measure, self._tensors, effect)

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Update all weights."""
        self._on_kernel(self._update, self._tensors, effect, header)

    async def publish(self, header: ChunkHeader) -> None:
        """On the kernel thread."""
        assert self._tensors is not None
        # It comes to this before any later update: the core would have named the later version otherwise.
        await self._loop.run_in_executor(self._kernel, self._publish, self._tensors, header, header.index)

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Copy, so that the next update need not wait for the disk."""
        self._on_kernel(self._snapshot, self._tensors, effect, save)

    def _on_kernel(self, work: Callable[..., None], *arguments: Any) -> None:
        self._kernel.submit(self._guarded, self._job, work, *arguments)

    def _guarded(self, job: str, work: Callable[..., None], *arguments: Any) -> None:
        """Run work whose failure is the job's, not the process's."""
        try:
            work(*arguments)
        except Exception as error:
            self._loop.call_soon_threadsafe(self._events.tell, broke(job, error))

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
            norm, finite, rate = tensors.measure(effect.step)
        measured = ev.Measured(effect.job, effect.step, norm, finite, rate)
        self._loop.call_soon_threadsafe(self._events.tell, measured)

    def _update(self, tensors: MasterTensors, effect: ev.Update, header: ChunkHeader) -> None:
        started = time.perf_counter()
        if effect.applied:
            tensors.begin_update(effect.norm, effect.learning_rate)
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
        """Nothing here waits for the disk: the core asks for one at a time."""
        try:
            copies = tensors.copy()
            hit_failpoint("optimizer.snapshot")
            save(*copies)
        except Exception as error:  # no memory for a copy, say
            self._loop.call_soon_threadsafe(self._events.tell, not_saved(effect, error))


def make_tensors(config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> MasterTensors:
    """Tensors of a job, all zero or as in a checkpoint (Refused: it is not of this job's optimizer)."""
    tensors = MasterTensors(config, layout)
    if checkpoint is not None:
        tensors.restore(checkpoint.weights, checkpoint.optimizer_state)
    return tensors


def broke(job: str, error: Exception) -> ev.OperationFailed:
    """What to tell the core of a job's failure."""
    return ev.OperationFailed(job, _reason(error))


def not_saved(effect: ev.Snapshot, error: Exception) -> ev.SaveFailed:
    """What to tell the core of a snapshot that did not become a checkpoint."""
    return ev.SaveFailed(effect.job, effect.generation, effect.step, _reason(error))


def _reason(error: Exception) -> str:
    """An error for people; what nobody foresaw is logged with its traceback."""
    if isinstance(error, TiermeshError):
        return str(error)
    log.error("%s", describe_internal_error(error), exc_info=error)
    return describe_internal_error(error)
