"""What a job was submitted as, for another one like it, and what a job takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.config.job import JobConfig
from services.config.job_inputs import inputs_of_job
from services.config.models import OwnConfig
from services.config.origins import Origins
from services.config.parameters import model_parts
from services.config.paths import is_own_config
from services.config.settings import list_settings
from services.config.written import write_config
from services.errors import TiermeshError
from services.jobs.client import JobsClient
from services.sizing.chips import DEFAULT_CHIP
from services.sizing.device_memory import estimate_device_memory
from services.sizing.disk import estimate_checkpoints
from services.sizing.fitting import LARGEST_ERROR
from services.sizing.pipeline import estimate_bubble, size_stages
from services.sizing.share import FLOAT32_BYTES
from web.values import finite

_NO_MESH: dict[str, Any] = {"mesh": None, "axes": None}
_MOST_MESHES = 1000


def submission_values(config: JobConfig) -> dict[str, Any]:
    """Return a submission that makes another job like this one, its settings by key, and what it takes.

    Files are named by their SHA-256. Those that Tiermesh ships need no name.
    """
    files: dict[str, str] = {}
    for each in inputs_of_job(config):
        if not each.is_code and not is_own_config(Path(each.path)):
            files |= {
                f"{each.path}/{name}" if name else each.path: sha256 for name, sha256 in each.files.items()
            }
    code = config.code
    return {
        "config": write_config(config),
        "overrides": {},
        "files": files,
        "code": None if code is None else {"path": code.path, "sha256": code.sha256},
        "settings": finite({each.key: each.value for each in list_settings(config, Origins())}),
        "takes": what_it_takes(config),
    }


def what_it_takes(config: JobConfig) -> dict[str, Any]:
    """Return what a job takes, as far as its config tells. None stands for what only workers know.

    The memory of a chip is that of a Wormhole's, or of the stage of a pipeline that takes most.
    """
    pipeline, device = config.pipeline, config.device
    length: int = getattr(config.model, "max_sequence_length", 1)
    tokens = config.sequences_per_step * length
    parameters = _count_parameters(config)
    checkpoint = None if parameters is None else estimate_checkpoints(config, parameters).bytes_each
    return {
        "parameters": parameters,
        "model_bytes": None if parameters is None else FLOAT32_BYTES * parameters,
        "checkpoint_bytes": checkpoint,
        "steps": config.steps,
        "micro_batches": config.micro_batches,
        "tokens_per_step": tokens,
        "tokens": tokens * config.steps,
        "min_workers": config.min_workers,
        "max_workers": config.most_workers,
        "mesh_shape": list(device.mesh_shape),
        "data_parallel": device.data_parallel_size,
        "tensor_parallel": device.tensor_parallel_size,
        "stages": config.stages,
        "schedule": pipeline and pipeline.schedule,
        "bubble": pipeline and round(estimate_bubble(pipeline, config.gradient_accumulation_steps), 4),
        **_judge_chip(config),
    }


class Meshes:
    """Meshes of the workers of jobs, which stay the same as long as a job has the id."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    async def find(self, client: JobsClient, job: str | None) -> dict[str, Any]:
        """Return the mesh of each of a job's workers, and its axes; None if there is no job, or the mesh is unknown."""
        if job is None:
            return _NO_MESH
        if job not in self._known:
            try:
                found = mesh_values(JobConfig.from_json(await client.spec_json(job)))
            except TiermeshError:  # it is gone meanwhile, or the aggregator is older than this call
                return _NO_MESH
            if len(self._known) >= _MOST_MESHES:
                self._known.clear()
            self._known[job] = found
        return self._known[job]


def mesh_values(config: JobConfig) -> dict[str, Any]:
    """Return the mesh of a job's workers, and the sizes of its axes, rows first."""
    device = config.device
    data = "fsdp" if device.enable_fsdp else "dp"
    axes = {device.data_axis: data, device.tensor_axis: "tp"}
    shape = device.mesh_shape
    return {
        "mesh": list(shape),
        "axes": {axes[axis]: length for axis, length in enumerate(shape) if axis in axes},
    }


def _count_parameters(config: JobConfig) -> int | None:
    if isinstance(config.model, OwnConfig) or config.vocabulary is None:
        return None
    return sum(part.elements for part in model_parts(config.model, config.vocabulary))


def _judge_chip(config: JobConfig) -> dict[str, Any]:
    """Return the peak memory of a chip, what it has, and whether that is enough; of chips, not of the emulator."""
    needed = None
    if config.device.backend != "emulator" and config.vocabulary is not None:
        dtype, banks = config.device.dtype or "bfloat16", DEFAULT_CHIP.banks
        if config.pipeline is None:
            memories = [estimate_device_memory(config, config.vocabulary, dtype=dtype, banks=banks)]
        else:
            memories = [
                each.memory for each in size_stages(config, config.vocabulary, dtype=dtype, banks=banks)
            ]
        needed = max((each.total_bytes for each in memories if each is not None), default=None)
    has = DEFAULT_CHIP.dram_bytes
    if needed is None:
        verdict = None
    elif needed <= has:
        verdict = "fits"
    else:
        verdict = "may not fit" if needed <= LARGEST_ERROR * has else "will be refused"
    return {"verdict": verdict, "chip_bytes": needed, "chip_has_bytes": None if needed is None else has}
