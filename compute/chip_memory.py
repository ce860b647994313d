"""Refuses a job that the chips of an open mesh can't hold, before anything of it is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.device import Mesh
from mesh.memory import find_chip_limit
from services.config.job import JobConfig
from services.errors import Refused
from services.pipeline.split import StageRun
from services.printable import format_bytes
from services.sizing.device_memory import DeviceMemory, estimate_device_memory
from services.sizing.fitting import LARGEST_ERROR, describe_shortage
from services.sizing.pipeline import size_stages
from training.pipeline.submeshes import find_pipeline_mesh_shape

_DTYPE = "bfloat16"
"""Type of weights and activations on real chips."""


class ChipMemoryShort(Refused):
    """A job, or some stages of its pipeline, that the chips certainly can't hold."""


def check_chip_memory(config: JobConfig, mesh: Mesh, stages: StageRun | None = None) -> None:
    """Check that a job may fit into the memory of a mesh's chips.

    A mesh that has a submesh for each of a worker's stages must hold the largest stage. Another one must hold all of
    them; all stages of a pipeline are the whole model.

    Only real chips are asked: an emulated one has the memory of its host. A job that is too large by less than the
    estimate's error is tried. So is one whose model or vocabulary the config doesn't tell.

    Args:
        config: config of the job.
        mesh: the mesh.
        stages: the stages of the job's pipeline to build; None for the whole model.

    Raises:
        ChipMemoryShort: the job certainly needs more; the line says how much, and what to change.
    """
    chip = find_chip_limit(mesh)
    if chip is None or config.vocabulary is None:
        return
    run = StageRun(0, config.stages) if stages is None else stages
    divided = mesh.shape == find_pipeline_mesh_shape(config, run.count)
    stage = None
    if divided or run.count < config.stages:
        sizes = size_stages(
            config, config.vocabulary, dtype=_DTYPE, banks=chip.banks, worker_stages=run.count
        )[run.first : run.stop]
        largest = max(sizes, key=lambda each: each.memory_bytes)
        stage, memory = largest.stage, largest.memory
        needed_bytes = largest.memory_bytes if divided else _join([each.memory for each in sizes])
    else:
        memory = estimate_device_memory(config, config.vocabulary, dtype=_DTYPE, banks=chip.banks)
        needed_bytes = memory.total_bytes if memory is not None else 0
    if memory is None or needed_bytes <= LARGEST_ERROR * chip.total_bytes:
        return
    if not divided and run.count > 1 and stage is not None:
        raise ChipMemoryShort(
            f"device_config: {format_bytes(needed_bytes)} needed on each chip for {run} at once, expected at most the "
            f"{format_bytes(chip.total_bytes)} of this worker's {mesh.arch}; give the job more workers"
        )
    raise ChipMemoryShort(
        describe_shortage(
            config,
            memory,
            dtype=_DTYPE,
            banks=chip.banks,
            chip=f"this worker's {mesh.arch}",
            chip_bytes=chip.total_bytes,
            stage=stage,
            worker_stages=run.count if stage is not None else 1,
        )
    )


def _join(stages: Sequence[DeviceMemory | None]) -> int:
    """Return the peak of stages that take turns on a mesh: what each keeps, and the most that one needs in its turn."""
    known = [each for each in stages if each is not None]
    kept_bytes = [each.weights_bytes + each.inputs_bytes + each.activations_bytes for each in known]
    return sum(kept_bytes) + max(
        (each.total_bytes - kept for each, kept in zip(known, kept_bytes, strict=True)), default=0
    )
