"""The pipeline of a job: how its blocks are split over stages, and in which order a stage's passes run.

A stage is what tt-train calls a rank. `services/pipeline` has the ranges of blocks and the schedules.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from services.config.device import DeviceConfig
from services.config.field_types import BlockCount, ConfigRecord
from services.config.models import AnyModelConfig, CustomConfig, GPT2Config, LlamaConfig
from services.config.refusals import format_value
from services.errors import Refused
from services.pipeline.schedule import Schedule, ScheduleKind, check_micro_batches
from services.pipeline.split import Split
from services.protocol.bounds import MAX_STAGES

MOST_STAGES = MAX_STAGES
"""Maximum number of stages: a block for each."""
_SECTION = "multihost_config.pipeline_parallel_config"
_INTERLEAVED: ScheduleKind = "interleaved_1f1b"


class PipelineConfig(ConfigRecord):
    """Pipeline parallelism: stages that hold some blocks each, and that every micro-batch passes in order.

    Attributes:
        blocks_per_stage: number of blocks of each stage (tt-train's `blocks_per_rank`).
        ranges_per_stage: number of ranges of each stage; at least 2 in the interleaved schedule, else 1.
        schedule: order of the forward and backward passes of a step.
        hide_transfers: whether the stages of 1F1B may keep nearly twice as many micro-batches in flight, so that they
            have work while activations and gradients are between two workers.
    """

    blocks_per_stage: Annotated[tuple[BlockCount, ...], Field(min_length=1, max_length=MOST_STAGES)]
    ranges_per_stage: BlockCount = 1
    schedule: ScheduleKind = "1f1b"
    hide_transfers: bool = True

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.blocks_per_stage)

    @cached_property
    def split(self) -> Split:
        """The ranges of blocks of all stages."""
        return Split(self.blocks_per_stage, self.ranges_per_stage)

    def make_schedule(self, micro_batches: int, *, worker_stages: int = 1) -> Schedule:
        """Return the order of passes of some micro-batches.

        All workers of a row get the same one. A worker with all stages has no transfers to hide, and no other worker
        in its row; any fewer stages give the same order.

        Args:
            micro_batches: micro-batches that pass the pipeline.
            worker_stages: number of stages of the worker that asks.
        """
        hides = self.hide_transfers and worker_stages < self.stages
        return Schedule(self.schedule, self.stages, micro_batches, self.ranges_per_stage, hides)

    @model_validator(mode="after")
    def _check_ranges(self) -> PipelineConfig:
        ranges = self.ranges_per_stage
        if (ranges > 1) != (self.schedule == _INTERLEAVED):
            expected, fix = (
                ("at least 2", "write ranges_per_rank: 2, or schedule: 1f1b")
                if self.schedule == _INTERLEAVED
                else ("1", f"write schedule: {_INTERLEAVED}, or remove ranges_per_rank")
            )
            raise ValueError(
                f"{_SECTION}.ranges_per_rank: {ranges} given with schedule {self.schedule}, expected {expected}; {fix}"
            )
        least = min(self.blocks_per_stage)
        if least < ranges:
            stage = self.blocks_per_stage.index(least)
            raise ValueError(
                f"{_SECTION}.blocks_per_rank: {least} block{'s' * (least > 1)} given for rank {stage} with "
                f"ranges_per_rank {ranges}, expected a block for each range; write at least {ranges}, or fewer ranges"
            )
        return self


def count_blocks(model: AnyModelConfig) -> int:
    """Return the number of blocks of a model that a pipeline splits.

    A user's own model declares them as `transformer_config.num_blocks`.

    Raises:
        Refused: it has none, or does not declare them; one line with the field and how to fix it.
    """
    start = f"{_SECTION}: given with model_type {format_value(model.model_type)}"
    match model:
        case GPT2Config() | LlamaConfig():
            return model.num_blocks
        case CustomConfig():
            declared = model.options.get("num_blocks")
            if type(declared) is int and declared > 0:
                return declared
            raise Refused(
                f"{start}, which does not declare its blocks, expected their number; write it as "
                "transformer_config.num_blocks, or remove the pipeline"
            )
    raise Refused(f"{start}, which has no blocks to split, expected gpt2 or llama; remove the pipeline")


def check_pipeline(
    pipeline: PipelineConfig,
    model: AnyModelConfig,
    device: DeviceConfig,
    num_workers: int,
    gradient_accumulation_steps: int,
) -> None:
    """Check that a pipeline splits all blocks of the model, and that workers and micro-batches fill its stages.

    Raises:
        Refused: they don't; one line with the field, its value, what was expected and how to fix it.
    """
    blocks, given, stages = count_blocks(model), sum(pipeline.blocks_per_stage), pipeline.stages
    if given != blocks:
        raise Refused(
            f"{_SECTION}.blocks_per_rank: {given} blocks in all given, expected the model's {blocks} "
            "(transformer_config.num_blocks); correct them, or write blocks_per_rank: auto"
        )
    if num_workers % stages:
        below = num_workers - num_workers % stages
        counts = f"{below} or {below + stages}" if below else str(stages)
        raise Refused(
            f"multihost_config.num_workers: {num_workers} given with {stages} stages, expected a multiple of {stages}, "
            f"as num_workers counts the ranks of all pipelines; write {counts}, or as many ranks in blocks_per_rank"
        )
    if device.trace and stages > 1:
        raise Refused(
            "device_config.trace: true given with a pipeline, expected false, as a recorded pass is the only one under "
            "way and a stage has several; set trace: false, or remove the pipeline"
        )
    check_micro_batches(pipeline.schedule, stages, gradient_accumulation_steps)
