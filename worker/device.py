"""The thread on which everything of the mesh happens, one task after the other.

The event loop hands in what the core decided; the thread tells of it with inputs for the core. A lease that is dropped
is given up between two micro-batches.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import Mesh, open_mesh
from mesh.fingerprint import board
from mesh.refusals import explained
from protos import cluster_pb2 as pb
from services.config import JobConfig
from services.errors import Failed, TiermeshError
from services.metrics import WorkerMetrics
from services.plan import plan_of
from services.process import describe
from services.tensors.kernels import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_range
from services.tensors.wire import TensorChunk
from worker import events as ev
from worker.meters import TRACK_MEMORY, MemoryUsageTracker, PerformanceMeter
from worker.node_sum import NodeSum
from worker.parallel import axes_of
from worker.step import TrainingStep

log = logging.getLogger("tiermesh.worker")


class BuiltStep:
    """A job on the mesh, the weights on their way to it, and what is measured of it."""

    def __init__(
        self, job: str, step: TrainingStep, mesh: Mesh, meter: PerformanceMeter, memory: MemoryUsageTracker
    ) -> None:
        self.job = job
        self.step = step
        self.mesh = mesh
        self.meter = meter
        self.memory = memory
        self._weights: Float32Array = np.empty(step.layout.elements, np.float32)
        self._arrived: set[int] = set()
        self._version = (0, 0)
        self._next_entry = 0
        self._complete_to = 0

    def load(self, chunk: TensorChunk) -> None:
        """Take a chunk of weights; every parameter that it completes goes onto the mesh."""
        header = chunk.header
        version = (header.generation, header.step)
        if version != self._version:
            self._version, self._next_entry, self._complete_to = version, 0, 0
            self._arrived.clear()
        layout = self.step.layout
        start, stop = chunk_range(layout.elements, header.index)
        self._weights[start:stop] = chunk.values()
        self._arrived.add(header.index)
        while self._complete_to < layout.elements and self._complete_to // CHUNK_ELEMENTS in self._arrived:
            self._complete_to = chunk_range(layout.elements, self._complete_to // CHUNK_ELEMENTS)[1]
        while self._next_entry < len(layout.entries):
            entry = layout.entries[self._next_entry]
            if entry.stop > self._complete_to:
                return
            self.step.load(self._next_entry, self._weights[entry.offset : entry.stop])
            self._next_entry += 1

    def close(self) -> None:
        """Free the mesh."""
        try:
            self.memory.clear()
            self.step.close()
        finally:
            self.mesh.close()
        log.info("job %s: the mesh of %s is closed", self.job, list(self.mesh.shape))


class DeviceThread:
    """Builds jobs, loads weights, and fulfils leases.

    Args:
        tell: takes inputs for the core; called on the device thread.
        data_dir: where corpora and tokenizers are looked for if they are not where the job says.
        metrics: of this worker.
        allowed_models: code of models of the user's own that jobs may name, see `worker.models.build_model`.
    """

    def __init__(
        self,
        tell: Callable[[ev.Input], None],
        data_dir: Path | None,
        metrics: WorkerMetrics,
        allowed_models: Collection[str] = (),
    ) -> None:
        self._tell = tell
        self._data_dir = data_dir
        self._metrics = metrics
        self._allowed_models = allowed_models
        self._thread = ThreadPoolExecutor(1, "device")
        self._built: BuiltStep | None = None
        self._sums: dict[int, Float32Array] = {}
        self._leases: set[int] = set()  # handed in and not dropped yet
        self._dropped: set[int] = set()

    # ---- called on the event loop ----

    def carry_out(self, effect: ev.Effect, chunk: TensorChunk | None) -> None:
        """Queue what the core decided; `chunk` of weights that just arrived."""
        match effect:
            case ev.Load():
                assert chunk is not None
                self._submit(self._load, chunk)
            case ev.FinishLoad():
                self._submit(self._finish_load, effect)
            case ev.Perform():
                self._leases.add(effect.lease.lease)
                self._submit(self._perform, effect.lease)
            case ev.DropLease():
                self._leases.discard(effect.lease)
                self._dropped.add(effect.lease)
                self._submit(self._forget, effect.lease)
            case ev.Build():
                self._submit(self._build, effect)
            case ev.DropJob():
                self._submit(self._drop_job)

    def values(self, lease: int, chunk: int) -> Float32Array | None:
        """A chunk of a lease's sum, a view; None if the lease has been dropped."""
        values = self._sums.get(lease)
        if values is None:
            return None
        start, stop = chunk_range(values.size, chunk)
        return values[start:stop]

    def give_up(self) -> None:
        """Have what is being computed end with the micro-batch under way."""
        self._dropped.update(self._leases)

    def close(self) -> None:
        """Give up what is being computed, free the mesh, end the thread."""
        self.give_up()
        self._submit(self._drop_job)
        self._thread.shutdown()

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self._thread.submit(_logged, work, *arguments)

    # ---- on the device thread ----

    def _build(self, effect: ev.Build) -> None:
        try:
            self._drop_job()
            config = JobConfig.from_json(effect.spec_json)
            try:
                mesh = _open(config)
            except Failed as error:
                self._metrics.fit(False)
                log.error("job %s: unfit, trying again later: %s", effect.job, error)
                self._tell(ev.BuildFailed(effect.job, str(error), unfit=True))
                return
            self._metrics.fit(True)
            log.info(
                "job %s: opened a mesh of %s, %s (%s)", effect.job, list(mesh.shape), mesh.arch, board(mesh)
            )
            memory = MemoryUsageTracker(mesh)
            try:
                memory.begin_capture()
                step = TrainingStep(config, mesh, self._data_dir, self._allowed_models)
                memory.snapshot("MODEL_CREATION")
            except BaseException:
                memory.clear()
                mesh.close()
                raise
        except Exception as error:
            self._tell(ev.BuildFailed(effect.job, _reason(error)))
            return
        self._built = BuiltStep(effect.job, step, mesh, PerformanceMeter(config), memory)
        self._tell(
            ev.Built(
                job=effect.job,
                layout_hash=step.layout.hash,
                elements=step.layout.elements,
                evaluation_batches=step.evaluation_batches,
                tokens_per_micro_batch=step.tokens_per_micro_batch,
                fingerprint=step.fingerprint(),
                wire=plan_of(config).wire,
            )
        )

    def _drop_job(self) -> None:
        self._sums.clear()
        built, self._built = self._built, None
        if built is not None:
            try:
                built.close()
            except Exception as error:  # the next job may be luckier
                log.error("job %s: the mesh did not close: %s", built.job, _reason(error))

    def _load(self, chunk: TensorChunk) -> None:
        if self._built is not None and self._built.job == chunk.header.job:
            self._built.load(chunk)

    def _finish_load(self, effect: ev.FinishLoad) -> None:
        if self._built is not None and self._built.job == effect.job:
            self._metrics.holds(effect.job, effect.step)
            if self._built.memory.capturing:
                self._built.memory.snapshot("WEIGHTS_LOADED")
                self._built.step.on_phase = self._built.memory.snapshot
            self._tell(ev.Loaded(effect.job, effect.generation, effect.step))

    def _forget(self, lease: int) -> None:
        self._sums.pop(lease, None)
        self._dropped.discard(lease)

    def _perform(self, lease: pb.Lease) -> None:
        built = self._built
        if built is None or built.job != lease.job or lease.lease in self._dropped:
            return
        try:
            if lease.phase == pb.TRAIN:
                self._train(built, lease)
            elif lease.phase == pb.EVALUATE:
                self._evaluate(built.step, lease)
            else:
                self._initialise(built.step, lease)
        except Exception as error:
            reason = _reason(error)
            log.error("lease %d: %s", lease.lease, reason)
            self._tell(ev.LeaseFailed(lease.lease, reason))

    def _initialise(self, step: TrainingStep, lease: pb.Lease) -> None:
        self._sums[lease.lease] = step.initial_weights()
        self._tell(ev.Described(lease.lease, step.layout.dumps(), step.checkpoint_files()))

    def _train(self, built: BuiltStep, lease: pb.Lease) -> None:
        step = built.step
        losses: list[float] = []
        elements = step.layout.elements
        told = -(-elements // CHUNK_ELEMENTS)

        def ready(offset: int) -> None:
            nonlocal told
            chunk = -(-offset // CHUNK_ELEMENTS)
            if chunk < told and offset > 0:
                told = chunk
                self._tell(ev.NodeReady(lease.lease, chunk))

        started = time.perf_counter()
        total = NodeSum(elements, lease.count, ready)
        for index in range(lease.first, lease.first + lease.count):
            if lease.lease in self._dropped:
                return
            last = index == lease.first + lease.count - 1

            def compute(
                out: Float32Array, done: Callable[[int], None], index: int = index, last: bool = last
            ) -> float:
                if last:
                    self._sums[lease.lease] = out
                return step.micro_batch(lease.step, index, out, done)

            losses.append(total.add_leaf(compute))
            if step.on_phase is not None:
                self._first_iteration_complete(built)
        seconds = time.perf_counter() - started
        self._tell(ev.NodeReady(lease.lease, 0, tuple(losses)))
        tokens = lease.count * step.tokens_per_micro_batch
        self._metrics.computed(lease.job, micro_batches=lease.count, tokens=tokens, seconds=seconds)
        built.meter.step(lease.count)
        self._metrics.performance(lease.job, *built.meter.get_metrics())
        self._tell(ev.LeaseComputed(lease.lease, seconds, tokens))

    def _first_iteration_complete(self, built: BuiltStep) -> None:
        built.step.on_phase = None
        built.memory.end_capture("FIRST_ITERATION_COMPLETE")
        for phase in built.memory.phases:
            self._metrics.memory(
                built.job, phase.name, device=phase.device, device_peak=phase.device_peak, host=phase.host
            )
        if os.environ.get(TRACK_MEMORY) == "1":
            built.memory.print_memory_usage()

    def _evaluate(self, step: TrainingStep, lease: pb.Lease) -> None:
        losses = []
        for index in range(lease.first, lease.first + lease.count):
            if lease.lease in self._dropped:
                return
            total, tokens = step.evaluate(index)
            losses.append(pb.BatchLoss(index=index, sum=total, tokens=tokens))
        self._tell(ev.LeaseEvaluated(lease.lease, tuple(losses)))


def _open(config: JobConfig) -> Mesh:
    device = config.device
    return open_mesh(
        device.mesh_shape,
        backend=device.backend,
        dtype=device.dtype,
        axes=axes_of(device),
        trace=device.trace,
        threads=device.threads,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TiermeshError):
        return str(error)
    known = explained(error) if isinstance(error, RuntimeError) else None
    return known or describe(error)


def _logged(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception as error:  # nobody waits for this future
        log.exception("%s", describe(error))
