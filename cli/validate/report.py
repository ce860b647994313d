"""Figures of a job, as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from cli.validate.cluster import Cluster, share_out
from cli.validate.timing import advise_on_evaluation, describe_time
from services.config.job import JobConfig
from services.config.models import OwnConfig
from services.config.origins import Origins
from services.config.parameters import model_parts
from services.config.resolve.job import ResolvedJob
from services.config.settings import list_settings, optimizer_name
from services.sizing.device_memory import estimate_device_memory
from services.sizing.disk import estimate_checkpoints
from services.sizing.fitting import LARGEST_ERROR, describe_shortage
from services.sizing.flops import count_flops_per_token
from services.sizing.idle import advise_on_idle_workers
from services.sizing.job_memory import estimate_job_memory
from services.sizing.links import estimate_links
from services.sizing.pipeline import (
    StageSize,
    count_projection_blocks,
    estimate_bubble,
    estimate_stage_links,
    size_stages,
)


class Report(NamedTuple):
    """Figures of a job.

    Attributes:
        figures: all figures, as one JSON object.
        shortage: a line if the chips have too little memory for the job, or for a stage of its pipeline; else None.
        advice: lines about workers without work, and about evaluations that take longer than training.
    """

    figures: dict[str, Any]
    shortage: str | None
    advice: list[str]


def make_report(job: ResolvedJob, origins: Origins, cluster: Cluster) -> Report:
    """Return the figures of a job, whether the chips have too little memory for it, and what would be better.

    Figures that only a worker can know are None: those of users' own models, and of unknown vocabularies.

    Args:
        job: the job.
        origins: origins of its settings.
        cluster: cluster that the figures are for.
    """
    config = job.config
    device = config.device
    workers = cluster.workers or config.num_workers
    evaluation_batches = config.evaluation_batches or config.validation_batches or None
    report: dict[str, Any] = {
        "name": config.name,
        "model": config.model.model_type,
        "starts_from": config.pretrained.path if config.pretrained else None,
        "data": ", ".join(file.path for file in config.data.files) if config.data else None,
        "optimizer": optimizer_name(config),
        "schedule": config.schedule.type,
        "mesh_shape": list(device.mesh_shape),
        "data_parallel": device.data_parallel_size,
        "tensor_parallel": device.tensor_parallel_size,
        "steps": config.steps,
        "micro_batches": config.micro_batches,
        "batch_size": config.batch_size,
        "evaluation_batches": evaluation_batches,
        "sequences_per_step": config.sequences_per_step,
        **_count_tokens(config, job.training_windows),
        "vocabulary": config.vocabulary,
        "settings": [asdict(setting) for setting in list_settings(config, origins)],
        "tiers": 2 if cluster.shards else cluster.tiers,
        "workers": workers,
        "holders": config.count_holders(workers),
        "busy_holders": share_out(config, workers).busy,
        "shards": cluster.shards,
    }
    parameters = _count_parameters(config)
    report["parameters"] = parameters
    stages = _size_stages(config, cluster)
    report["pipeline"] = _describe_pipeline(config, cluster, stages)
    sizes: dict[str, Any] = dict.fromkeys(
        ("flops_per_token", "device_memory", "host_memory", "links", "checkpoints", "verdict")
    )
    report["time"] = describe_time(config, cluster, evaluation_batches)
    idle = advise_on_idle_workers(config, workers)
    slow = advise_on_evaluation(config, workers, evaluation_batches, report["time"])
    advice = [line for line in (idle, slow) if line is not None]
    if parameters is None:
        return Report(report | sizes, None, advice)
    sizes["flops_per_token"] = count_flops_per_token(config.model, config.vocabulary or 0)
    sizes["device_memory"], shortage = _size_device(config, cluster, stages)
    roles = {key: report[key] for key in ("workers", "tiers", "shards")}
    elements = parameters["total"]
    sizes["host_memory"] = [asdict(each) for each in estimate_job_memory(config, **roles)]
    sizes["links"] = [asdict(each) for each in estimate_links(config, elements, **roles)]
    checkpoints = estimate_checkpoints(config, elements)
    sizes["checkpoints"] = asdict(checkpoints) | {"most_bytes": checkpoints.most_bytes}
    sizes["verdict"] = _judge(sizes["device_memory"])
    return Report(report | sizes, shortage, advice)


def _judge(memory: dict[str, Any] | None) -> str | None:
    """Return `fits`, `may not fit` or `will be refused`; None if the memory of the chips is unknown."""
    if memory is None or memory["chip_bytes"] is None:
        return None
    if memory["total_bytes"] <= memory["chip_bytes"]:
        return "fits"
    return (
        "may not fit" if memory["total_bytes"] <= LARGEST_ERROR * memory["chip_bytes"] else "will be refused"
    )


def _count_tokens(config: JobConfig, windows: int | None) -> dict[str, Any]:
    """Return tokens of a step and of the job, and how often the data is seen; samples have one token each."""
    length: int = getattr(config.model, "max_sequence_length", 1)
    sequences = config.steps * config.sequences_per_step
    return {
        "tokens_per_step": config.sequences_per_step * length,
        "tokens": sequences * length,
        "epochs": round(sequences / windows, 4) if windows else None,
    }


def _count_parameters(config: JobConfig) -> dict[str, int] | None:
    """Return the number of parameters in all and by part; None if only a worker knows it."""
    if isinstance(config.model, OwnConfig) or config.vocabulary is None:
        return None
    parts = {part.name: part.elements for part in model_parts(config.model, config.vocabulary)}
    return {"total": sum(parts.values()), **parts}


def _size_device(
    config: JobConfig, cluster: Cluster, stages: Sequence[StageSize]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the memory of a chip, at the largest stage of a pipeline, and a line if that is more than it has."""
    dtype, chip, known = cluster.choose_chip(config)
    largest = _find_largest(stages)
    if largest is None:
        memory = estimate_device_memory(config, config.vocabulary or 0, dtype=dtype, banks=chip.banks)
    else:
        memory = largest.memory
    if memory is None:
        return None, None
    stage = None if largest is None else largest.stage
    sizes = asdict(memory) | {
        "total_bytes": memory.total_bytes,
        "stage": stage,
        "dtype": dtype,
        "chip": chip.name if known else None,
        "chip_bytes": chip.dram_bytes if known else None,
        "source": chip.source if known else None,
    }
    if not known or memory.total_bytes <= chip.dram_bytes:
        return sizes, None
    line = describe_shortage(
        config,
        memory,
        dtype=dtype,
        banks=chip.banks,
        chip=chip.name,
        chip_bytes=chip.dram_bytes,
        stage=stage,
    )
    return sizes, line


def _size_stages(config: JobConfig, cluster: Cluster) -> list[StageSize]:
    """Return what each stage of a pipeline takes; nothing without a pipeline."""
    if config.pipeline is None:
        return []
    dtype, chip, _ = cluster.choose_chip(config)
    return size_stages(config, config.vocabulary, dtype=dtype, banks=chip.banks)


def _find_largest(stages: Sequence[StageSize]) -> StageSize | None:
    """Return the stage that needs most memory of a chip; None if only workers know, or there are no stages."""
    known = [each for each in stages if each.memory is not None]
    return max(known, key=lambda each: each.memory_bytes) if known else None


def _describe_pipeline(
    config: JobConfig, cluster: Cluster, stages: Sequence[StageSize]
) -> dict[str, Any] | None:
    """Return the figures of a pipeline; None without one."""
    pipeline, vocabulary = config.pipeline, config.vocabulary
    if pipeline is None:
        return None
    dtype, _, _ = cluster.choose_chip(config)
    projection, micro_batches = (
        count_projection_blocks(config, vocabulary),
        config.gradient_accumulation_steps,
    )
    largest = _find_largest(stages)
    return {
        "stages": [_describe_stage(each) for each in stages],
        "schedule": pipeline.schedule,
        "ranges_per_stage": pipeline.ranges_per_stage,
        "pipelines": config.num_workers // pipeline.stages,
        "micro_batches_each": micro_batches,
        "bubble": round(estimate_bubble(pipeline, micro_batches), 4),
        "bubble_with_projection": None
        if projection is None
        else round(estimate_bubble(pipeline, micro_batches, projection_blocks=projection), 4),
        "largest_stage": largest.stage if largest else None,
        "largest_stage_bytes": largest.memory_bytes if largest else None,
        "links": [asdict(each) for each in estimate_stage_links(config, vocabulary or 0, dtype=dtype)],
    }


def _describe_stage(size: StageSize) -> dict[str, Any]:
    memory = size.memory
    return {
        "stage": size.stage,
        "blocks": [[each.first, each.stop - 1] for each in size.ranges],
        "parameters": size.parameters,
        "in_flight": size.in_flight,
        "device_memory": asdict(memory) | {"total_bytes": memory.total_bytes} if memory else None,
    }
