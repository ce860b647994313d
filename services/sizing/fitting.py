"""What to say of a job that needs more memory than a chip has, with a change after which it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.models import GPT2Config, LlamaConfig
from services.printable import format_bytes
from services.sizing.device_memory import DeviceMemory, estimate_device_memory
from services.sizing.portion import Portion

LARGEST_ERROR = 1.1
"""Factor by which the estimate may be too high. Beyond it a job certainly does not fit."""


def describe_shortage(
    config: JobConfig,
    memory: DeviceMemory,
    *,
    dtype: str,
    banks: int,
    chip: str,
    chip_bytes: int,
    stage: int | None = None,
    worker_stages: int = 1,
) -> str:
    """Return one line that says what a job needs, what the chip has, and what to change.

    Args:
        config: config of the job, whose vocabulary is known.
        memory: estimate of what it needs.
        dtype: dtype of weights and activations.
        banks: number of DRAM banks of the chip.
        chip: name of the chip, for people.
        chip_bytes: size of its DRAM.
        stage: stage of a pipeline that the figures are about; None for the whole model.
        worker_stages: number of stages of the worker that has this one.
    """
    whose = f"{config.name:.40}'s" if stage is None else f"stage {stage}'s"
    head = (
        f"device_config: {format_bytes(memory.total_bytes)} needed on each chip at {whose} peak "
        f"({memory.peak}), expected at most the {format_bytes(chip_bytes)} of {chip}"
    )
    for text, changed in _changes(config):
        portion = _portion(changed, stage, worker_stages)
        found = estimate_device_memory(
            changed, config.vocabulary or 0, dtype=dtype, banks=banks, portion=portion
        )
        if found is not None and found.total_bytes <= chip_bytes:
            return f"{head}; write for example {text} ({format_bytes(found.total_bytes)})"
    other = "a smaller model" if stage is None else "more stages"
    return f"{head}; use a mesh of more chips with enable_tp or enable_fsdp, or {other}"


def _portion(config: JobConfig, stage: int | None, worker_stages: int) -> Portion | None:
    if stage is None or config.pipeline is None:
        return None
    micro_batches = config.gradient_accumulation_steps
    return Portion.of_stage(config.pipeline, stage, micro_batches, worker_stages=worker_stages)


def _changes(config: JobConfig) -> Iterator[tuple[str, JobConfig]]:
    """Yield changes to a job and what they are called, the least costly ones first."""
    model, device, pipeline = config.model, config.device, config.pipeline
    if pipeline is not None and pipeline.schedule == "1f1b" and pipeline.hide_transfers:
        exposing = pipeline.model_copy(update={"hide_transfers": False})
        yield (
            "multihost_config.pipeline_parallel_config.hide_transfers: false",
            _replaced(config, pipeline=exposing),
        )
    bases = [("", config)]
    if (
        isinstance(model, (GPT2Config, LlamaConfig))
        and model.runner_type == "default"
        and model.num_blocks > 1
    ):
        recomputing = _replaced(config, model=model.model_copy(update={"runner_type": "memory_efficient"}))
        bases.append(("transformer_config.runner_type: memory_efficient", recomputing))
    if device.enable_ddp:
        bases += [
            (_joined(text, "enable_fsdp: true in place of enable_ddp"), _sharded(base, device))
            for text, base in tuple(bases)
        ]
    yield from bases[1:]
    batch, least, factor = config.batch_size, device.data_parallel_size, 2
    while (
        batch % factor == 0 and (batch // factor) % least == 0
    ):  # the same sequences in a step, in smaller batches
        yield from (_with_smaller_batch(text, base, factor) for text, base in bases)
        factor *= 2


def _with_smaller_batch(text: str, config: JobConfig, factor: int) -> tuple[str, JobConfig]:
    size, accumulation = config.batch_size // factor, config.gradient_accumulation_steps * factor
    validation = min(config.validation_batch_size, size)
    smaller = f"batch_size: {size} with gradient_accumulation_steps: {accumulation}"
    if validation < config.validation_batch_size:
        smaller += f" and validation_batch_size: {validation}"
    changed = _replaced(config, batch_size=size, validation_batch_size=validation)
    return _joined(text, smaller), changed


def _sharded(config: JobConfig, device: DeviceConfig) -> JobConfig:
    return _replaced(config, device=device.model_copy(update={"enable_ddp": False, "enable_fsdp": True}))


def _replaced(config: JobConfig, **changes: Any) -> JobConfig:
    return config.model_copy(update=changes)


def _joined(one: str, other: str) -> str:
    return f"{one} and {other}" if one else other
