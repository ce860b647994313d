"""The thread on which everything of the mesh happens, one task after the other.

The event loop hands in what the core decided; the thread tells of it with inputs for the core. A lease that is dropped
is given up between two micro-batches, or where it waits for weights.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import Mesh, open_mesh
from mesh.fingerprint import board_type
from mesh.ttnn_errors import explain_known_error
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader, NonFinite
from services.config.job import JobConfig
from services.errors import Failed, TiermeshError, describe_internal_error
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import TensorChunk, bytes_per_element
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS
from training.parameter_placement import axes_of
from training.step import PassPhase, TrainingStep
from worker.core import events as ev
from worker.gradient_checksum import GradientChecksum
from worker.meters import TRACK_MEMORY, MemoryUsageTracker, PerformanceMeter
from worker.node_sum import NodeSum
from worker.step_interface import Step, StepFactory
from worker.sum_memory import LeaseSum, SumMemory
from worker.weight_loader import LeaseDropped, WeightInbox, WeightLoader

log = logging.getLogger("tiermesh.worker")

PATIENCE_SECONDS = 60.0
"""A lease that has waited so long for weights says so in the log. It waits on until it is dropped: with the link, whose
end doesn't go unnoticed, or when newer weights come or the aggregator revokes it."""


class BuiltStep:
    """A job on the mesh, the weights on their way to it, and what is measured of it."""

    def __init__(
        self,
        job: str,
        step: Step,
        mesh: Mesh,
        weights: WeightLoader,
        wire_bytes: int,
        meter: PerformanceMeter,
        memory: MemoryUsageTracker,
    ) -> None:
        self.job = job
        self.step = step
        self.mesh = mesh
        self.weights = weights
        self.wire_bytes = wire_bytes  # of an element of a gradient
        self.meter = meter
        self.memory = memory
        self.weights_loaded = False

    @property
    def in_first_iteration(self) -> bool:
        """Whether the phases of the job's first micro-batch are being measured."""
        return self.weights_loaded and self.memory.capturing

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
        allowed_models: code of models of the user's own that jobs may name, see `training.models.build_model`.
        make_step: makes the training step of a job.
        clock: monotonic time in seconds, by which computing and waiting are measured.
        open_mesh: opens the mesh of a job.
        inbox: takes weights that arrive, and lets the device thread wait for them.
        patience_seconds: how long a lease waits for weights before a line of the log says so.
    """

    def __init__(
        self,
        tell: Callable[[ev.Input], None],
        data_dir: Path | None,
        metrics: WorkerMetrics,
        allowed_models: Collection[str] = (),
        *,
        make_step: StepFactory = TrainingStep,
        clock: Callable[[], float] = time.perf_counter,
        open_mesh: Callable[..., Mesh] = open_mesh,
        inbox: WeightInbox | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._tell = tell
        self._data_dir = data_dir
        self._metrics = metrics
        self._allowed_models = allowed_models
        self._thread = ThreadPoolExecutor(1, "device")
        self._built: BuiltStep | None = None
        self._make_step = make_step
        self._clock = clock
        self._open_mesh = open_mesh
        self._patience_seconds = patience_seconds
        self._non_finite: list[NonFinite] = []  # of the lease under way
        self._inbox = inbox or WeightInbox()
        self._performing = 0  # the lease under way
        self._lease = pb.Lease()
        self._fetching_seconds = 0.0  # of it, until the weights that it needed were on the mesh
        self._sums: dict[int, LeaseSum] = {}
        self._memory = SumMemory()
        self._leases: set[int] = set()  # handed in and not dropped yet
        self._dropped: set[int] = set()

    # ---- called on the event loop ----

    def carry_out(self, effect: ev.Effect, chunk: TensorChunk | None) -> None:
        """Queue what the core decided; `chunk` of weights that just arrived."""
        match effect:
            case ev.Load():
                assert chunk is not None
                if self._inbox.put(chunk):
                    self._submit(self._load)
            case ev.Perform():
                self._leases.add(effect.lease.lease)
                self._submit(self._perform, effect.lease)
            case ev.DropLease():
                self._leases.discard(effect.lease)
                self._dropped.add(effect.lease)
                self._inbox.wake()
                self._submit(self._forget, effect.lease)
            case ev.Build():
                self._submit(self._build, effect)
            case ev.DropJob():
                self._submit(self._drop_job)

    def share(self, sharing: bool) -> None:
        """From the next lease on, have sums in memory that an aggregator on this host sees."""
        self._memory.sharing = sharing

    def sum_of(self, lease: int) -> LeaseSum | None:
        """A lease's sum; None if the lease has been dropped."""
        return self._sums.get(lease)

    def give_up(self) -> None:
        """Have what is being computed end with the micro-batch under way, or where it waits for weights."""
        self._dropped.update(self._leases)
        self._inbox.wake()

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
                mesh = self._open(config)
            except Failed as error:
                self._metrics.set_mesh_fit(False)
                log.error("job %s: unfit, trying again later: %s", effect.job, error)
                self._tell(ev.BuildFailed(effect.job, str(error), unfit=True))
                return
            self._metrics.set_mesh_fit(True)
            log.info(
                "job %s: opened a mesh of %s, %s (%s)",
                effect.job,
                list(mesh.shape),
                mesh.arch,
                board_type(mesh),
            )
            memory = MemoryUsageTracker(mesh)
            try:
                memory.begin_capture()
                step = self._make_step(
                    config,
                    mesh,
                    self._data_dir,
                    self._allowed_models,
                    around_phase=self._around_phase,
                    on_non_finite=self._note_non_finite,
                )
                memory.snapshot("MODEL_CREATION")
            except BaseException:
                memory.clear()
                mesh.close()
                raise
        except Exception as error:
            self._tell(ev.BuildFailed(effect.job, _reason(error)))
            return
        weights = WeightLoader(step, self._fetch, self._memory.committed)
        wire = config.plan().wire
        wire_bytes = bytes_per_element(wire.gradients)
        self._built = BuiltStep(
            effect.job, step, mesh, weights, wire_bytes, PerformanceMeter(config, clock=self._clock), memory
        )
        self._tell(
            ev.Built(
                job=effect.job,
                layout_hash=step.layout.hash,
                elements=step.layout.elements,
                evaluation_batches=step.evaluation_batches,
                tokens_per_micro_batch=step.tokens_per_micro_batch,
                fingerprint=step.fingerprint(),
                wire=wire,
            )
        )

    def _open(self, config: JobConfig) -> Mesh:
        device = config.device
        return self._open_mesh(
            device.mesh_shape,
            backend=device.backend,
            dtype=device.dtype,
            axes=axes_of(device),
            trace=device.trace,
            threads=device.threads,
        )

    def _drop_job(self) -> None:
        self._sums.clear()
        self._memory.clear()
        built, self._built = self._built, None
        if built is not None:
            try:
                built.close()
            except Exception as error:  # the next job may be luckier
                log.error("job %s: the mesh did not close: %s", built.job, _reason(error))

    def _load(self) -> None:
        """Put on the mesh what has arrived."""
        built = self._built
        for chunk in self._inbox.take():
            header = chunk.header
            if built is None or built.job != header.job:
                continue
            with timeline.span("device", "weights onto the mesh", header.step, chunk=header.index):
                complete = built.weights.load(chunk)
            if complete:
                self._loaded(built, header)

    def _loaded(self, built: BuiltStep, last: ChunkHeader) -> None:
        timeline.mark("device", "weights complete", last.step)
        self._metrics.set_weights_step(last.job, last.step)
        if built.memory.capturing:
            built.memory.snapshot("WEIGHTS_LOADED")
            built.weights_loaded = True
        self._tell(ev.Loaded(last.job, last.generation, last.step))

    def _fetch(self, entry: int) -> None:
        """Have the parameter of a layout entry on the mesh, before the lease under way uses it.

        Raises:
            LeaseDropped: the lease was dropped.
        """
        built, lease = self._built, self._performing
        assert built is not None
        started = self._clock()
        while True:
            self._load()
            if self._is_dropped():
                raise LeaseDropped(f"lease {lease}: dropped while it waited for weights")
            if built.weights.loaded > entry:
                break
            with timeline.span("device", "wait for weights", chunk=built.weights.missing_chunk):
                came = self._inbox.wait(self._is_dropped, self._patience_seconds)
            if not came:
                log.warning(
                    "job %s: lease %d has waited %.0f s for chunk %d of its weights from the aggregator",
                    built.job, lease, self._clock() - started, built.weights.missing_chunk,
                )  # fmt: skip
        self._fetching_seconds += self._clock() - started

    def _is_dropped(self) -> bool:
        return self._performing in self._dropped

    def _forget(self, lease: int) -> None:
        used = self._sums.pop(lease, None)
        if used is not None:
            self._memory.rest(used)
        self._dropped.discard(lease)

    def _perform(self, lease: pb.Lease) -> None:
        built = self._built
        if built is None or built.job != lease.job or lease.lease in self._dropped:
            return
        self._performing, self._fetching_seconds = lease.lease, 0.0
        self._lease = lease
        self._non_finite.clear()
        try:
            if lease.phase == pb.TRAIN:
                self._train(built, lease)
            elif lease.phase == pb.VERIFY:
                self._verify(built, lease)
            elif lease.phase == pb.EVALUATE:
                self._evaluate(built.step, lease)
            else:
                self._initialise(built.step, lease)
        except LeaseDropped:
            return  # by the core, which knows
        except Exception as error:
            reason = _reason(error)
            log.error("lease %d: %s", lease.lease, reason)
            self._tell(ev.LeaseFailed(lease.lease, reason))

    def _initialise(self, step: Step, lease: pb.Lease) -> None:
        self._sums[lease.lease] = LeaseSum(step.initial_weights())
        self._tell(ev.Described(lease.lease, step.layout.dumps(), step.checkpoint_files()))

    def _train(self, built: BuiltStep, lease: pb.Lease) -> None:
        step = built.step
        losses: list[float] = []
        checksums: list[pb.Checksum] = []
        asked = set(lease.checksums)
        elements = step.layout.elements
        told = -(-elements // CHUNK_ELEMENTS)

        def ready(offset: int) -> None:
            nonlocal told
            chunk = -(-offset // CHUNK_ELEMENTS)
            if chunk < told and offset > 0:
                told = chunk
                timeline.mark("device", "gradient ready", lease.step, chunk=chunk)
                self._tell(ev.NodeReady(lease.lease, chunk))

        started = self._clock()
        self._sums[lease.lease] = memory = self._memory.take(elements, built.wire_bytes)
        total = NodeSum(memory.values, lease.count, ready)
        for index in range(lease.first, lease.first + lease.count):
            if lease.lease in self._dropped:
                return

            def compute(out: Float32Array, done: Callable[[int], None], index: int = index) -> float:
                last = index == lease.first + lease.count - 1
                with timeline.span("device", "micro-batch", lease.step, index=index, last=last):
                    if index not in asked:
                        return step.micro_batch(lease.step, index, out, done)
                    loss, checksum = _checked(step, lease.step, index, out, done)
                    checksums.append(checksum)
                    return loss

            losses.append(total.add_leaf(compute))
            if built.in_first_iteration:
                self._first_iteration_complete(built)
        seconds = self._clock() - started - self._fetching_seconds
        timeline.mark("device", "gradient ready", lease.step, chunk=0)
        hit_failpoint("worker.gradient-ready")
        self._tell(ev.NodeReady(lease.lease, 0, tuple(losses), tuple(self._non_finite)))
        tokens = lease.count * step.tokens_per_micro_batch
        self._metrics.count_computed(lease.job, micro_batches=lease.count, tokens=tokens, seconds=seconds)
        self._metrics.count_wait_for_weights(lease.job, self._fetching_seconds)
        built.meter.step(lease.count)
        self._metrics.set_rates(lease.job, *built.meter.get_metrics())
        self._tell(ev.LeaseComputed(lease.lease, seconds, tokens, tuple(checksums)))

    @contextmanager
    def _around_phase(self, phase: PassPhase) -> Iterator[None]:
        if phase is PassPhase.FORWARD_PASS:
            span = timeline.span("device", "forward")
        else:
            span = timeline.span("device", "backward")
        with span:
            yield
        if self._built is not None and self._built.in_first_iteration:
            self._built.memory.snapshot(phase.value)

    def _note_non_finite(self, index: int, parameter: str) -> None:
        lease = self._lease
        if lease.phase != pb.TRAIN:
            return  # the worker that computed this micro-batch for its sum reports it
        self._non_finite.append(NonFinite(micro_batch=index, parameter=parameter))
        log.warning(
            "job %s: step %d: the gradient of micro-batch %d is not finite, first that of %s",
            lease.job, lease.step + 1, index, parameter,
        )  # fmt: skip

    def _verify(self, built: BuiltStep, lease: pb.Lease) -> None:
        """Compute micro-batches for their checksums alone: no sum, and no part of what is measured."""
        step = built.step
        checksums = []
        gradient = np.empty(step.layout.elements, np.float32)
        for index in lease.checksums:
            if lease.lease in self._dropped:
                return
            with timeline.span("device", "check", lease.step, index=index):
                checksums.append(_checked(step, lease.step, index, gradient, lambda offset: None)[1])
        hit_failpoint("worker.check")
        self._tell(ev.LeaseComputed(lease.lease, 0.0, 0, tuple(checksums)))

    def _first_iteration_complete(self, built: BuiltStep) -> None:
        built.memory.end_capture("FIRST_ITERATION_COMPLETE")
        for phase in built.memory.phases:
            self._metrics.set_memory(
                built.job, phase.name, device=phase.device, device_peak=phase.device_peak, host=phase.host
            )
        if os.environ.get(TRACK_MEMORY) == "1":
            built.memory.print_memory_usage()

    def _evaluate(self, step: Step, lease: pb.Lease) -> None:
        losses = []
        for index in range(lease.first, lease.first + lease.count):
            if lease.lease in self._dropped:
                return
            with timeline.span("device", "evaluate", lease.step, index=index):
                total, tokens = step.evaluate(index)
            losses.append(pb.BatchLoss(index=index, sum=total, tokens=tokens))
        self._tell(ev.LeaseEvaluated(lease.lease, tuple(losses)))


def _checked(
    step: Step, number: int, index: int, out: Float32Array, done: Callable[[int], None]
) -> tuple[float, pb.Checksum]:
    """`TrainingStep.micro_batch`, and the checksum of the gradient, which `done` may change."""
    checksum = GradientChecksum(step.layout, out)

    def ready(offset: int) -> None:
        checksum.down_to(offset)
        done(offset)

    loss = step.micro_batch(number, index, out, ready)
    return loss, pb.Checksum(micro_batch=index, crc32c=checksum.crc32c)


def _reason(error: Exception) -> str:
    if isinstance(error, TiermeshError):
        return str(error)
    known = explain_known_error(error) if isinstance(error, RuntimeError) else None
    return known or describe_internal_error(error)


def _logged(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception as error:  # nobody waits for this future
        log.exception("%s", describe_internal_error(error))
