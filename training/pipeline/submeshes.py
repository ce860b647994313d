"""The meshes that a job's training step is built on: one, or a submesh for each stage of its pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.device import Mesh
from services.config.job import JobConfig
from services.errors import Refused
from services.pipeline.split import StageRun
from training.parameter_placement import choose_axes


def find_pipeline_mesh_shape(config: JobConfig, stages: int | None = None) -> tuple[int, int] | None:
    """Return rows and columns of a mesh with a submesh for each of some stages, one below the other.

    Args:
        config: config of the job. Without a pipeline the result is None.
        stages: number of stages; None for all of the job's pipeline.
    """
    rows, columns = config.device.mesh_shape
    return None if config.stages == 1 else ((stages or config.stages) * rows, columns)


def divide_mesh(config: JobConfig, mesh: Mesh, stages: StageRun | None = None) -> Mesh | Mapping[int, Mesh]:
    """Return what a `TrainingStep` is built on, given the mesh opened for the job.

    A mesh of `find_pipeline_mesh_shape` is divided over the stages. On one like that of one stage, some stages take
    turns. All of them are the whole model there, which runs one micro-batch after the other, to the same bits: ranges
    that share chips would take turns, and keep the activations of several micro-batches.

    Args:
        config: config of the job.
        mesh: the mesh.
        stages: the stages of the job's pipeline to build; None for all.

    Raises:
        Refused: the job's pipeline has no such stages.
    """
    run = stages or StageRun(0, config.stages)
    if run.stop > config.stages:
        raise Refused(f"{run} ordered, expected some of the {config.stages} of the job's pipeline")
    meshes = (mesh,) * run.count
    if run.count > 1 and mesh.shape == find_pipeline_mesh_shape(config, run.count):
        meshes = mesh.split(run.count, choose_axes(config.device))
    elif run.count == config.stages:
        return mesh
    return dict(zip(range(run.first, run.stop), meshes, strict=True))
