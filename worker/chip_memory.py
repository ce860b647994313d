"""Refuses a job that the chips of an open mesh can't hold, before anything of it is allocated."""

from __future__ import annotations

from mesh.device import Mesh
from mesh.memory import find_chip_limit
from services.config.job import JobConfig
from services.errors import Refused
from services.sizing.device_memory import estimate_device_memory
from services.sizing.fitting import LARGEST_ERROR, describe_shortage
from services.sizing.pipeline import size_stages
from training.pipeline.build import find_pipeline_mesh_shape

_DTYPE = "bfloat16"
"""Type of weights and activations on real chips."""


def check_chip_memory(config: JobConfig, mesh: Mesh) -> None:
    """Check that a job may fit into the memory of a mesh's chips.

    A mesh that has a submesh for each stage of a pipeline must hold the largest stage, others the whole model.

    Only real chips are asked: an emulated one has the memory of its host. A job that is too large by less than the
    estimate's error is tried. So is one whose model or vocabulary the config doesn't tell.

    Raises:
        Refused: the job certainly needs more; the line says how much, and what to change.
    """
    chip = find_chip_limit(mesh)
    if chip is None or config.vocabulary is None:
        return
    stage = None
    if mesh.shape == find_pipeline_mesh_shape(config):
        sizes = size_stages(
            config, config.vocabulary, dtype=_DTYPE, banks=chip.banks, worker_stages=config.stages
        )
        largest = max(sizes, key=lambda each: each.memory_bytes)
        stage, memory = largest.stage, largest.memory
    else:
        memory = estimate_device_memory(config, config.vocabulary, dtype=_DTYPE, banks=chip.banks)
    if memory is not None and memory.total_bytes > LARGEST_ERROR * chip.total_bytes:
        raise Refused(
            describe_shortage(
                config,
                memory,
                dtype=_DTYPE,
                banks=chip.banks,
                chip=f"this worker's {mesh.arch}",
                chip_bytes=chip.total_bytes,
                stage=stage,
                worker_stages=config.stages if stage is not None else 1,
            )
        )
