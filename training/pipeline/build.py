"""Choice of a job's training step: the whole model, the ranges of a pipeline on submeshes, or some of its stages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from mesh.device import Mesh
from services.config.job import JobConfig
from services.errors import Refused
from services.pipeline.split import StageRun
from training.parameter_placement import choose_axes
from training.pipeline.stages import PipelineStages
from training.pipeline.step import PipelineStep
from training.step import PassObserver, TrainingStep, unobserved


def find_pipeline_mesh_shape(config: JobConfig, stages: int | None = None) -> tuple[int, int] | None:
    """Return rows and columns of a mesh with a submesh for each of some stages, one below the other.

    Args:
        config: config of the job. Without a pipeline the result is None.
        stages: number of stages; None for all of the job's pipeline.
    """
    rows, columns = config.device.mesh_shape
    return None if config.stages == 1 else ((stages or config.stages) * rows, columns)


def build_step(
    config: JobConfig,
    mesh: Mesh,
    data_dir: Path | None = None,
    allowed_models: Collection[str] = (),
    *,
    around_phase: PassObserver = unobserved,
    on_non_finite: Callable[[int, str], None] | None = None,
) -> TrainingStep | PipelineStep:
    """Build a job's training step on a mesh; see `TrainingStep`.

    A mesh of `find_pipeline_mesh_shape` is divided over the stages. On a mesh like that of one stage, the whole model
    runs one micro-batch after the other, to the same bits: ranges that share chips would take turns, and keep the
    activations of several micro-batches.
    """
    pipeline = config.pipeline
    if pipeline is None or mesh.shape != find_pipeline_mesh_shape(config):
        return TrainingStep(
            config, mesh, data_dir, allowed_models, around_phase=around_phase, on_non_finite=on_non_finite
        )
    meshes = mesh.split(pipeline.stages, choose_axes(config.device))
    return PipelineStep(
        config,
        pipeline,
        meshes,
        data_dir,
        allowed_models,
        around_phase=around_phase,
        on_non_finite=on_non_finite,
    )


def build_stages(
    config: JobConfig,
    mesh: Mesh,
    stages: StageRun,
    data_dir: Path | None = None,
    allowed_models: Collection[str] = (),
    *,
    around_phase: PassObserver = unobserved,
    on_non_finite: Callable[[int, str], None] | None = None,
) -> PipelineStages:
    """Build some stages of a job's pipeline on a mesh; see `PipelineStages`.

    A mesh of `find_pipeline_mesh_shape` is divided over the stages. On another one they take turns.

    Raises:
        Refused: the job's pipeline has no such stages, or see `PipelineStages`.
    """
    pipeline = config.pipeline
    if pipeline is None or stages.stop > pipeline.stages:
        raise Refused(f"{stages} ordered, expected some of the {config.stages} of the job's pipeline")
    meshes = (mesh,) * stages.count
    if stages.count > 1 and mesh.shape == find_pipeline_mesh_shape(config, stages.count):
        meshes = mesh.split(stages.count, choose_axes(config.device))
    return PipelineStages(
        config,
        pipeline,
        dict(zip(range(stages.first, stages.stop), meshes, strict=True)),
        data_dir,
        allowed_models,
        around_phase=around_phase,
        on_non_finite=on_non_finite,
    )
