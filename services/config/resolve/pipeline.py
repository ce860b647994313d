"""Resolution of `multihost_config` and its `pipeline_parallel_config`: number of workers, and split of the blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.config.balance import balance_blocks, divide_evenly
from services.config.device import DeviceConfig
from services.config.models import AnyModelConfig, GPT2Config, LlamaConfig
from services.config.pipeline import MOST_STAGES, PipelineConfig, check_pipeline, count_blocks
from services.config.refusals import format_value
from services.config.sections import MultihostSection, PipelineSection
from services.errors import Refused

_SECTION = "multihost_config.pipeline_parallel_config"
_FIELD = f"{_SECTION}.blocks_per_rank"
_NUMBER = re.compile(r"-?[0-9]{1,9}")


def resolve_num_workers(multihost: MultihostSection, notices: list[str]) -> int:
    """Return the number of workers that tt-train would have; a line is appended for each setting without effect.

    Raises:
        Refused: there are none.
    """
    workers = 1 if multihost.num_workers is None else multihost.num_workers
    pipeline = multihost.pipeline_parallel_config
    if not multihost.enabled:
        ineffective = {
            "num_workers": workers if workers > 1 else None,
            "pipeline_parallel_config": pipeline and pipeline.model_dump(exclude_unset=True),
        }
        notices += [
            f"multihost_config.{key}: {format_value(given)} is without effect: multihost_config.enabled is false"
            for key, given in ineffective.items()
            if given
        ]
        return 1
    if workers == 0:
        raise Refused(
            "multihost_config.num_workers: 0 given, expected at least 1; write for example num_workers: 2"
        )
    return workers


def resolve_pipeline(
    multihost: MultihostSection,
    enable_pp: bool,
    model: AnyModelConfig,
    device: DeviceConfig,
    num_workers: int,
    gradient_accumulation_steps: int,
) -> PipelineConfig | None:
    """Return the pipeline of a job, checked; None if it has none. Blocks that are to be balanced are equal here.

    Args:
        multihost: the `multihost_config` section.
        enable_pp: `device_config.enable_pp`.
        model: config of the model.
        device: the mesh of each worker.
        num_workers: number of ranks of all pipelines.
        gradient_accumulation_steps: micro-batches of each pipeline in a step.

    Raises:
        Refused: something is wrong; the first error is named.
    """
    section = multihost.pipeline_parallel_config
    if section is None or not section.model_fields_set:
        if enable_pp:
            raise Refused(
                "device_config.enable_pp: true given without multihost_config.pipeline_parallel_config, expected the "
                "blocks of each stage; write pipeline_parallel_config: {blocks_per_rank: auto}, or enable_pp: false"
            )
        return None
    if not multihost.enabled:
        if enable_pp:
            raise Refused(
                "device_config.enable_pp: true given with multihost_config.enabled: false, expected true, as a "
                "pipeline has several workers; set one of the two"
            )
        return None
    blocks = count_blocks(model)
    if section.num_blocks not in (None, blocks):
        raise Refused(
            f"{_SECTION}.num_blocks: {section.num_blocks} given, expected the model's {blocks} "
            f"(transformer_config.num_blocks); write num_blocks: {blocks}, and blocks_per_rank that add up to it"
        )
    pipeline = PipelineConfig(
        blocks_per_stage=_read_stages(section, blocks, num_workers),
        ranges_per_stage=section.ranges_per_rank,
        schedule=section.schedule,
        hide_transfers=section.hide_transfers,
    )
    check_pipeline(pipeline, model, device, num_workers, gradient_accumulation_steps)
    return pipeline


def balance_pipeline(
    pipeline: PipelineConfig | None,
    multihost: MultihostSection,
    model: AnyModelConfig,
    vocabulary: int | None,
) -> PipelineConfig | None:
    """Return a pipeline with balanced stages if its section asks for it, else unchanged.

    A user's own model keeps stages of equal blocks, as only a worker can build it.

    Args:
        pipeline: the pipeline of `resolve_pipeline`.
        multihost: the `multihost_config` section.
        model: config of the model, with its vocabulary if the job gives one.
        vocabulary: number of tokens of the tokenizer; None if only workers know it.
    """
    section = multihost.pipeline_parallel_config
    if pipeline is None or section is None or section.blocks_per_rank != "auto":
        return pipeline
    if not isinstance(model, GPT2Config | LlamaConfig):
        return pipeline
    blocks = balance_blocks(
        model, model.vocab_size or vocabulary or 0, pipeline.stages, pipeline.ranges_per_stage
    )
    return pipeline.model_copy(update={"blocks_per_stage": blocks})


def _read_stages(section: PipelineSection, blocks: int, num_workers: int) -> tuple[int, ...]:
    """Return the blocks of each stage; equal ones if they are to be balanced.

    Raises:
        Refused: a rank is missing, doubled or empty, or there are more stages than blocks.
    """
    given, wanted = section.blocks_per_rank, section.num_stages
    if given == "auto":
        stages = wanted or num_workers
        if stages > blocks:
            field = f"{_SECTION}.num_stages" if wanted else "multihost_config.num_workers"
            raise Refused(
                f"{field}: {stages} given as the number of stages, expected at most the model's {blocks} blocks "
                f"(transformer_config.num_blocks); write for example {_SECTION}.num_stages: {blocks}"
            )
        return divide_evenly(blocks, stages)
    if not given:
        raise Refused(
            f"{_FIELD}: {'missing' if given is None else 'empty'}, expected the blocks of each rank, such as "
            "{0: 16, 1: 16}; write them, or blocks_per_rank: auto"
        )
    by_rank = _read_blocks(given)
    missing = next((rank for rank in range(len(by_rank)) if rank not in by_rank), None)
    if missing is not None:
        raise Refused(
            f"{_FIELD}: rank {missing} is missing of {len(by_rank)} given, expected ranks 0 to {len(by_rank) - 1}; "
            f"add it, or number the ranks from 0"
        )
    if wanted not in (None, len(by_rank)):
        raise Refused(
            f"{_SECTION}.num_stages: {wanted} given with {len(by_rank)} ranks in blocks_per_rank, expected the same; "
            "remove num_stages"
        )
    return tuple(by_rank[rank] for rank in range(len(by_rank)))


def _read_blocks(given: Mapping[Any, Any]) -> dict[int, int]:
    """Return the number of blocks by rank.

    Raises:
        Refused: a rank or its number is out of range, or a rank is given twice.
    """
    if len(given) > MOST_STAGES:
        raise Refused(f"{_FIELD}: {len(given)} ranks given, expected at most {MOST_STAGES}; use fewer stages")
    by_rank: dict[int, int] = {}
    for key, value in given.items():
        rank, blocks = _to_int(key), _to_int(value)
        if rank is None or rank < 0:
            raise Refused(
                f"{_FIELD}: rank {format_value(key)} given, expected a whole number from 0; number the ranks from 0"
            )
        if rank in by_rank:
            raise Refused(f"{_FIELD}: rank {rank} given twice, expected each rank once; remove one of them")
        if blocks is None or not 1 <= blocks <= MOST_STAGES:
            raise Refused(
                f"{_FIELD}: {format_value(value)} given for rank {rank}, expected a number of blocks from 1, as each "
                "stage has some; correct it, or leave out the rank and number the others from 0"
            )
        by_rank[rank] = blocks
    return by_rank


def _to_int(value: Any) -> int | None:
    """Return a whole number, also if it is given as text; None for anything else."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
