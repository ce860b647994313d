"""A job on the mesh: opened, built and closed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.chip_memory import check_chip_memory
from compute.code_fingerprint import hash_code
from compute.first_iteration import FirstIteration
from compute.step_interface import Step, StepFactory
from mesh.device import Mesh, is_mesh_of_host
from protos.compute_pb2 import PassEnded
from services.config.job import JobConfig
from services.config.job_inputs import relocate_inputs
from services.pipeline.split import StageRun
from services.protocol.fingerprint import CODE
from training.models.own_code import import_own_code_from
from training.parameter_placement import choose_axes
from training.pipeline.submeshes import divide_mesh, find_pipeline_mesh_shape
from training.step import TrainingStep

OpenMesh = Callable[..., Mesh]


@dataclass(frozen=True)
class JobSettings:
    """What a compute process builds.

    Attributes:
        config: config of the job; its inputs are on this host.
        stages: the stages of its pipeline to build; None for the whole model.
        data_dir: folder that is searched for corpora and tokenizers missing at the job's path; None for none.
        allowed_models: code of users' own models that the job may name, see `training.models.build_model`.
        code_folder: folder that its own model is imported from; None for where it is installed.
    """

    config: JobConfig
    stages: StageRun | None
    data_dir: Path | None = None
    allowed_models: Collection[str] = ()
    code_folder: Path | None = None

    @classmethod
    def read(
        cls,
        spec_json: str,
        places: Mapping[str, str],
        stages: StageRun | None,
        data_dir: Path | None,
        allowed_models: Collection[str],
        code_folder: Path | None,
    ) -> JobSettings:
        """Return the settings of a job whose config is JSON and whose inputs have been fetched (Refused)."""
        fetched = {path: Path(place) for path, place in places.items()}
        config = relocate_inputs(JobConfig.from_json(spec_json), fetched)
        return cls(config, stages, data_dir, allowed_models, code_folder)


def choose_mesh(config: JobConfig, stages: StageRun | None = None) -> dict[str, Any]:
    """Return the arguments of `open_mesh` for the mesh that a job's device config describes.

    For a pipeline it has a mesh for each stage, if the host has them.

    Args:
        config: config of the job.
        stages: the stages of its pipeline to build; None for the whole model.
    """
    device = config.device
    return {
        "mesh_shape": _choose_mesh_shape(config, stages),
        "backend": device.backend,
        "dtype": device.dtype,
        "axes": choose_axes(device),
        "trace": device.trace,
        "threads": device.threads,
        "device_ids": device.device_ids,
    }


@dataclass(frozen=True)
class JobOnMesh:
    """A job that is built.

    Attributes:
        mesh: the open mesh.
        step: the training step, or some stages.
        first_iteration: memory of the first micro-batch.
        fingerprint: what the bits of gradients depend on.
    """

    mesh: Mesh
    step: Step
    first_iteration: FirstIteration
    fingerprint: Mapping[str, str]

    @classmethod
    def build(
        cls,
        settings: JobSettings,
        mesh: Mesh,
        *,
        make_step: StepFactory = TrainingStep,
        pass_ended: Callable[[PassEnded], None],
        on_non_finite: Callable[[int, str], None],
    ) -> JobOnMesh:
        """Make a job's training step on an open mesh; if that fails, the mesh is closed.

        Args:
            settings: what to build.
            mesh: open, as the config describes it.
            make_step: factory of the step.
            pass_ended: callback, called with the times of each pass.
            on_non_finite: callback, called with a micro-batch's index and a parameter's name, if that gradient is not
                finite.

        Raises:
            Refused: data is missing, the model can't be built, or the chips have too little memory for it.
        """
        config = settings.config
        first_iteration = FirstIteration(mesh, pass_ended)
        try:
            check_chip_memory(config, mesh, settings.stages)
            if settings.code_folder is not None:
                import_own_code_from(settings.code_folder)
            step = make_step(
                config,
                divide_mesh(config, mesh, settings.stages),
                settings.data_dir,
                settings.allowed_models,
                around_phase=first_iteration.around,
                on_non_finite=on_non_finite,
            )
            first_iteration.note_model()
            fingerprint = {**step.fingerprint(), CODE: hash_code(mesh.backend)}
            return cls(mesh, step, first_iteration, fingerprint)
        except BaseException:
            first_iteration.clear()
            mesh.close()
            raise

    def close(self) -> None:
        """Free the weights; the mesh stays open."""
        self.first_iteration.clear()
        self.step.close()


def _choose_mesh_shape(config: JobConfig, stages: StageRun | None) -> tuple[int, int]:
    """Return the shape of a mesh with a submesh for each stage to build, or that of the job's device config."""
    count = None if stages is None else stages.count
    device, divided = config.device, find_pipeline_mesh_shape(config, count)
    if divided is None or device.device_ids or not is_mesh_of_host(divided, device.backend):
        return device.mesh_shape
    return divided
