"""A job in this worker's compute process: its step, the weights on their way to it, and what is measured of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protos import compute_pb2 as pb
from services.config.job import JobConfig
from services.config.models import ExternalConfig
from services.pipeline.split import StageRun
from services.protocol.plan import WireTypes
from services.sizing.flops import count_flops_per_token, find_peak_flops
from services.tensors.chunk_messages import bytes_per_element
from worker.code_cache import CodeCache, OwnCode
from worker.compute_process import ComputeProcesses, Spawn
from worker.core.events import Built
from worker.job_order import BuildWatch, JobOrder, PassWatch
from worker.layout_share import LayoutShare
from worker.meters import PerformanceMeter
from worker.remote_step import RemoteStep
from worker.weight_loader import WeightLoader

log = logging.getLogger("tiermesh.worker")


@dataclass(frozen=True)
class JobOnMesh:
    """A job that is built.

    Attributes:
        job: id of the job.
        config: its config.
        stages: the stages of its pipeline that this worker has; None for the whole model.
        mesh: facts of the open mesh.
        step: the training step, or some stages.
        share: the worker's share of the layout.
        weights: puts weights that arrive on the mesh.
        wire: types in which the job's tensors travel.
        meter: samples per second.
        own_code: facts about the code of its own model; empty for a model of Tiermesh.
        flops_per_token: floating-point operations of training on a token; None if the model has no formula.
    """

    job: str
    config: JobConfig
    stages: StageRun | None
    mesh: pb.MeshOpened
    step: RemoteStep
    share: LayoutShare
    weights: WeightLoader
    wire: WireTypes
    meter: PerformanceMeter
    own_code: Mapping[str, str]
    flops_per_token: int | None

    @property
    def is_part(self) -> bool:
        """Whether other workers have other stages of the model."""
        return self.stages is not None and self.stages.count < self.config.stages

    @property
    def is_external(self) -> bool:
        """Whether a process of a user computes the gradients, by code that Tiermesh does not know."""
        return isinstance(self.config.model, ExternalConfig)

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
            fingerprint={**self.step.fingerprint, **self.own_code},
            wire=self.wire,
            flops_per_token=self.flops_per_token,
            peak_flops=find_peak_flops(self.mesh.arch, self.mesh.cores or None),
            stages=self.stages,
            parts=self.share.parts,
            shared=self.share.shared,
            micro_batches=self.config.micro_batches,
        )

    def close(self) -> None:
        """Free what it has on the mesh."""
        self.step.close()


@dataclass(frozen=True)
class JobBuilder:
    """Builder of jobs in compute processes.

    Attributes:
        spawn: starts a compute process.
        data_dir: folder that is searched for corpora and tokenizers missing at the job's path; None for none.
        code: the code of jobs' own models.
        clock: monotonic time in seconds.
        is_external: whether its process has joined, so that none can be started in its place.
    """

    spawn: Spawn
    data_dir: Path | None = None
    code: CodeCache = field(default_factory=CodeCache)
    clock: Callable[[], float] = time.perf_counter
    is_external: bool = False

    def build(
        self,
        job: str,
        spec_json: str,
        places: Mapping[str, Path],
        stages: StageRun | None,
        own_code: OwnCode | None,
        *,
        processes: ComputeProcesses,
        watch: BuildWatch,
        passes: PassWatch,
        on_new_version: Callable[[], None],
    ) -> JobOnMesh:
        """Open the mesh of a job and build the job.

        Args:
            job: id of the job.
            spec_json: its config.
            places: where inputs are that were fetched, by the path that the job names.
            stages: the stages of its pipeline to build; None for the whole model.
            own_code: the code of its own model, as `code` has prepared it; None for a model of Tiermesh.
            processes: gives it a compute process.
            watch: called while it is built.
            passes: called while passes run.
            on_new_version: callback, called when the first chunk of a weight version has arrived.

        Raises:
            MeshUnfit: the mesh can't be opened, which may change.
            Refused, Failed: the job can't be built.
        """
        config = JobConfig.from_json(spec_json)
        opened: list[pb.MeshOpened] = []

        def note_mesh(mesh: pb.MeshOpened) -> None:
            opened.append(mesh)
            log.info(
                "job %s: opened a mesh of %s, %s (%s)", job, [mesh.rows, mesh.columns], mesh.arch, mesh.board
            )
            watch.mesh_opened(mesh)

        order = JobOrder(
            job,
            spec_json,
            places,
            stages,
            self.data_dir,
            allowed_models=() if own_code is None else (config.model.model_type,),
            code_folder=None if own_code is None else own_code.folder,
        )
        step = RemoteStep(processes, order, BuildWatch(note_mesh, watch.file_read), passes)
        share = LayoutShare.of(step)
        return JobOnMesh(
            job=job,
            config=config,
            stages=stages,
            mesh=opened[0],
            step=step,
            share=share,
            weights=WeightLoader(step, share, on_new_version),
            wire=config.plan().wire,
            meter=PerformanceMeter(config, clock=self.clock),
            own_code={} if own_code is None else own_code.facts,
            flops_per_token=count_flops_per_token(config.model, step.vocabulary),
        )
