"""A job on the mesh: its training step, the weights on their way to it, and what is measured of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesh.device import Mesh, is_mesh_of_host, open_mesh
from mesh.fingerprint import find_board_type
from services.config.job import JobConfig
from services.instrumentation import timeline
from services.pipeline.schedule import Pass
from services.pipeline.split import StageRun
from services.protocol.fingerprint import CODE
from services.protocol.plan import WireTypes
from services.runtime.metrics import WorkerMetrics
from services.sizing.flops import count_flops_per_token, find_peak_flops
from services.tensors.chunk_messages import bytes_per_element
from training.models.own_code import import_own_code_from
from training.parameter_placement import choose_axes
from training.pipeline.passes import PassPhase
from training.pipeline.submeshes import divide_mesh, find_pipeline_mesh_shape
from training.step import TrainingStep
from worker.chip_memory import check_chip_memory
from worker.code_cache import CodeCache, OwnCode
from worker.code_fingerprint import hash_code
from worker.core.events import Built
from worker.layout_share import LayoutShare
from worker.meters import TRACK_MEMORY, WEIGHTS_LOADED, MemoryUsageTracker, PerformanceMeter
from worker.step_interface import Step, StepFactory
from worker.weight_loader import WeightLoader

log = logging.getLogger("tiermesh.worker")


class FirstIteration:
    """Memory of the job's first micro-batch, phase by phase, from the making of the model on.

    Args:
        mesh: the mesh whose memory is measured.
        clock: monotonic time in seconds.
    """

    def __init__(self, mesh: Mesh, clock: Callable[[], float] = time.perf_counter) -> None:
        self._memory = MemoryUsageTracker(mesh)
        self._has_weights = False
        self._clock = clock
        self._seconds = dict.fromkeys(PassPhase, 0.0)

    @property
    def is_under_way(self) -> bool:
        """Whether weights are on the mesh and the first micro-batch has not ended."""
        return self._has_weights and self._memory.is_capturing

    def begin(self) -> None:
        """Start measuring."""
        self._memory.begin_capture()

    def note_model(self) -> None:
        """End the phase in which the model is made."""
        self._memory.snapshot("MODEL_CREATION")

    def note_weights(self) -> None:
        """End the phase in which the first weights are loaded; later weights end none."""
        if self._memory.is_capturing:
            self._memory.snapshot(WEIGHTS_LOADED)
            self._has_weights = True

    def take_seconds(self) -> dict[PassPhase, float]:
        """Return the time of the passes since the last call, by phase."""
        taken, self._seconds = self._seconds, dict.fromkeys(PassPhase, 0.0)
        return taken

    @contextmanager
    def around(self, phase: PassPhase, one: Pass | None = None) -> Iterator[None]:
        """Record a pass in the timeline, add its time, and measure the memory of the first one."""
        facts: dict[str, Any] = (
            {} if one is None else {"range": one.range_index, "micro_batch": one.micro_batch}
        )
        if phase is PassPhase.FORWARD_PASS:
            span = timeline.span("device", "forward", **facts)
        else:
            span = timeline.span("device", "backward", **facts)
        began = self._clock()
        with span:
            yield
        self._seconds[phase] += self._clock() - began
        if self.is_under_way:
            self._memory.snapshot(phase.value)

    def end(self, job: str, metrics: WorkerMetrics, parameters: int) -> None:
        """End the measuring and publish it; with TTML_TRACK_MEMORY=1 it is printed too.

        Args:
            job: id of the job.
            metrics: take the memory of each phase.
            parameters: number of the model's parameters, which is printed.
        """
        self._memory.end_capture("FIRST_ITERATION_COMPLETE")
        for phase in self._memory.phases:
            metrics.set_memory(
                job,
                phase.name,
                device_bytes=phase.device_bytes,
                device_peak_bytes=phase.device_peak_bytes,
                host_bytes=phase.host_bytes,
            )
        if os.environ.get(TRACK_MEMORY) == "1":
            self._memory.print_memory_usage(parameters)

    def clear(self) -> None:
        """Stop measuring."""
        self._memory.clear()


@dataclass(frozen=True)
class JobOnMesh:
    """A job that is built.

    Attributes:
        job: id of the job.
        config: its config.
        stages: the stages of its pipeline that this worker has; None for the whole model.
        mesh: the open mesh.
        step: the training step, or some stages.
        share: the worker's share of the layout.
        weights: puts weights that arrive on the mesh.
        wire: types in which the job's tensors travel.
        meter: samples per second.
        first_iteration: memory of the first micro-batch.
        code: hash of the code that computes it.
        own_code: facts about the code of its own model; empty for a model of Tiermesh.
        flops_per_token: floating-point operations of training on a token; None if the model has no formula.
    """

    job: str
    config: JobConfig
    stages: StageRun | None
    mesh: Mesh
    step: Step
    share: LayoutShare
    weights: WeightLoader
    wire: WireTypes
    meter: PerformanceMeter
    first_iteration: FirstIteration
    code: str
    own_code: Mapping[str, str]
    flops_per_token: int | None

    @property
    def is_part(self) -> bool:
        """Whether other workers have other stages of the model."""
        return self.stages is not None and self.stages.count < self.config.stages

    @property
    def gradient_bytes(self) -> int:
        """Bytes on the wire of one element of a gradient."""
        return bytes_per_element(self.wire.gradients)

    def describe(self) -> Built:
        """Return what the core needs to know of the job."""
        return Built(
            job=self.job,
            layout_hash=self.step.layout.hash,
            elements=self.step.layout.elements,
            evaluation_batches=self.step.evaluation_batches,
            tokens_per_micro_batch=self.step.tokens_per_micro_batch,
            fingerprint={**self.step.fingerprint(), CODE: self.code, **self.own_code},
            wire=self.wire,
            flops_per_token=self.flops_per_token,
            peak_flops=find_peak_flops(self.mesh.arch, self.mesh.cores),
            stages=self.stages,
            parts=self.share.parts,
            shared=self.share.shared,
            micro_batches=self.config.micro_batches,
        )

    def close(self) -> None:
        """Free the mesh."""
        try:
            self.first_iteration.clear()
            self.step.close()
        finally:
            self.mesh.close()
        log.info("job %s: the mesh of %s is closed", self.job, list(self.mesh.shape))


@dataclass(frozen=True)
class JobBuilder:
    """Builder of jobs on the mesh.

    Attributes:
        data_dir: folder that is searched for corpora and tokenizers missing at the job's path; None for none.
        code: the code of jobs' own models.
        make_step: factory of a job's training step.
        open_mesh: function that opens the mesh of a job.
        clock: monotonic time in seconds.
    """

    data_dir: Path | None = None
    code: CodeCache = field(default_factory=CodeCache)
    make_step: StepFactory = TrainingStep
    open_mesh: Callable[..., Mesh] = open_mesh
    clock: Callable[[], float] = time.perf_counter

    def open_job_mesh(self, config: JobConfig, stages: StageRun | None = None) -> Mesh:
        """Open the mesh that a job's device config describes; for a pipeline, one for each stage if the host has them.

        Args:
            config: config of the job.
            stages: the stages of its pipeline to build; None for the whole model.

        Raises:
            Failed: the mesh can't be opened, which may change.
        """
        device = config.device
        return self.open_mesh(
            _choose_mesh_shape(config, stages),
            backend=device.backend,
            dtype=device.dtype,
            axes=choose_axes(device),
            trace=device.trace,
            threads=device.threads,
            device_ids=device.device_ids,
        )

    def build(
        self,
        job: str,
        config: JobConfig,
        mesh: Mesh,
        stages: StageRun | None = None,
        own_code: OwnCode | None = None,
        *,
        fetch: Callable[[int], None],
        on_new_version: Callable[[], None],
        on_non_finite: Callable[[int, str], None],
    ) -> JobOnMesh:
        """Make a job's training step on an open mesh; if that fails, the mesh is closed.

        Args:
            job: id of the job.
            config: config of the job.
            mesh: open, as `config` describes it.
            stages: the stages of its pipeline to build; None for the whole model.
            own_code: the code of its own model, as `code` has prepared it; None for a model of Tiermesh.
            fetch: callback, called by a pass before it uses a parameter that is not on the mesh, with its index in the
                layout.
            on_new_version: callback, called when the first chunk of a weight version has arrived.
            on_non_finite: callback, called with a micro-batch's index and a parameter's name, if that gradient is not
                finite.

        Raises:
            Refused: data is missing, the model can't be built, or the chips have too little memory for it.
        """
        log.info(
            "job %s: opened a mesh of %s, %s (%s)", job, list(mesh.shape), mesh.arch, find_board_type(mesh)
        )
        first_iteration = FirstIteration(mesh, self.clock)
        try:
            check_chip_memory(config, mesh, stages)
            first_iteration.begin()
            import_own_code_from(None if own_code is None else own_code.folder)
            step = self.make_step(
                config,
                divide_mesh(config, mesh, stages),
                self.data_dir,
                () if own_code is None else (config.model.model_type,),
                around_phase=first_iteration.around,
                on_non_finite=on_non_finite,
            )
            first_iteration.note_model()
            code = hash_code(mesh.backend)
        except BaseException:
            first_iteration.clear()
            mesh.close()
            raise
        share = LayoutShare.of(step)
        return JobOnMesh(
            job=job,
            config=config,
            stages=stages,
            mesh=mesh,
            step=step,
            share=share,
            weights=WeightLoader(step, share, fetch, on_new_version),
            wire=config.plan().wire,
            meter=PerformanceMeter(config, clock=self.clock),
            first_iteration=first_iteration,
            code=code,
            own_code={} if own_code is None else own_code.facts,
            flops_per_token=count_flops_per_token(config.model, step.vocabulary),
        )


def _choose_mesh_shape(config: JobConfig, stages: StageRun | None) -> tuple[int, int]:
    """Return the shape of a mesh with a submesh for each stage to build, or that of the job's device config."""
    count = None if stages is None else stages.count
    device, divided = config.device, find_pipeline_mesh_shape(config, count)
    if divided is None or device.device_ids or not is_mesh_of_host(divided, device.backend):
        return device.mesh_shape
    return divided
