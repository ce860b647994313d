"""What the stages of a pipeline take: parameters and memory of each, the bubble, and bytes between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.config.balance import count_work
from services.config.job import JobConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import model_parts
from services.config.pipeline import PipelineConfig
from services.pipeline.split import BlockRange
from services.pipeline.timing import PassSeconds, time_schedule
from services.sizing.device_memory import DeviceMemory, estimate_device_memory
from services.sizing.links import Link
from services.sizing.portion import Portion


@dataclass(frozen=True)
class StageSize:
    """What one stage takes.

    Attributes:
        stage: index of the stage, from 0.
        ranges: its ranges of blocks, in the order of the forward pass.
        parameters: number of its parameters; None if only workers know it.
        in_flight: most passes whose activations it keeps at once; each is a micro-batch through one range.
        memory: peak memory of each of its chips; None if only workers know it.
    """

    stage: int
    ranges: tuple[BlockRange, ...]
    parameters: int | None
    in_flight: int
    memory: DeviceMemory | None

    @property
    def memory_bytes(self) -> int:
        """Peak memory of each of its chips; 0 if it is unknown."""
        return self.memory.total_bytes if self.memory else 0


def size_stages(
    config: JobConfig, vocabulary: int | None, *, dtype: str, banks: int, worker_stages: int = 1
) -> list[StageSize]:
    """Return what each stage of a job's pipeline takes.

    Args:
        config: config of a job with a pipeline.
        vocabulary: number of tokens; None if only workers know it.
        dtype: dtype of weights and activations.
        banks: number of DRAM banks of a chip.
        worker_stages: number of stages of each worker.
    """
    assert config.pipeline is not None
    micro_batches = config.gradient_accumulation_steps
    schedule = config.pipeline.make_schedule(micro_batches, worker_stages=worker_stages)
    model, sizes = config.model, []
    for stage in range(config.pipeline.stages):
        portion = Portion.of_stage(config.pipeline, stage, micro_batches, worker_stages=worker_stages)
        in_flight = schedule.in_flight_limit(stage)
        if vocabulary is None or not isinstance(model, GPT2Config | LlamaConfig):
            sizes.append(StageSize(stage, portion.ranges, None, in_flight, None))
            continue
        parameters = sum(part.elements for part in portion.parameters(model_parts(model, vocabulary)))
        memory = estimate_device_memory(config, vocabulary, dtype=dtype, banks=banks, portion=portion)
        sizes.append(StageSize(stage, portion.ranges, parameters, in_flight, memory))
    return sizes


def count_stage_elements(config: JobConfig, vocabulary: int) -> list[int]:
    """Return the number of parameters of each stage; nothing without a pipeline, or if only workers know it."""
    pipeline, model = config.pipeline, config.model
    if pipeline is None or not isinstance(model, GPT2Config | LlamaConfig):
        return []
    portions = (
        Portion.of_stage(pipeline, stage, config.gradient_accumulation_steps)
        for stage in range(pipeline.stages)
    )
    parts = model_parts(model, vocabulary)
    return [sum(part.elements for part in portion.parameters(parts)) for portion in portions]


def count_worker_elements(stages: Sequence[int], workers: int) -> int:
    """Return the most parameters that a worker has. With fewer workers than stages, these are shared evenly.

    Args:
        stages: number of parameters of each stage.
        workers: number of worker daemons.
    """
    run = -(-len(stages) // min(workers, len(stages)))
    return max(sum(stages[first : first + run]) for first in range(0, len(stages), run))


def estimate_bubble(pipeline: PipelineConfig, micro_batches: int, *, projection_blocks: float = 0.0) -> float:
    """Return the share of time in which stages are idle, with equal time for each block and no time for transfers.

    A backward pass takes twice as long as a forward pass. An embedding takes no time.

    Args:
        pipeline: the pipeline.
        micro_batches: micro-batches of a pipeline in a step.
        projection_blocks: time of the projection to the vocabulary, in those of a block.
    """
    blocks = [len(each) + projection_blocks * each.is_last for each in pipeline.split.ranges]
    seconds = PassSeconds(forward=blocks, backward=[2 * each for each in blocks])
    return time_schedule(pipeline.make_schedule(micro_batches), seconds).bubble


def count_projection_blocks(config: JobConfig, vocabulary: int | None) -> float | None:
    """Return the operations of the projection to the vocabulary, in those of a block; None if only workers know it."""
    if vocabulary is None or not isinstance(config.model, GPT2Config | LlamaConfig):
        return None
    block, projection = count_work(config.model, vocabulary)
    return projection / block


def estimate_stage_links(config: JobConfig, vocabulary: int, *, dtype: str) -> list[Link]:
    """Return the bytes between stages in a step, over all pipelines of a job.

    Activations and their gradients are those of a micro-batch's residual stream. The tied part of a table's gradient
    goes from the last stage to the first for each micro-batch, from each chip that has sequences of its own.

    Args:
        config: config of a job with a pipeline.
        vocabulary: number of tokens.
        dtype: dtype of the mesh, in which activations travel unless the job says another one.
    """
    model, pipeline = config.model, config.pipeline
    assert pipeline is not None
    if not isinstance(model, GPT2Config | LlamaConfig) or pipeline.stages == 1:
        return []
    pipelines = config.num_workers // pipeline.stages
    on_wire = config.wire_dtype.activations or dtype
    element_bytes = 4 if on_wire == "float32" else 2
    crossings = len(pipeline.split.ranges) - 1
    rows = config.batch_size * model.max_sequence_length
    each_way = config.micro_batches * crossings * rows * model.embedding_dim * element_bytes
    # With several ranges the last stage sends to the first one, too.
    links = pipelines * (pipeline.stages - (pipeline.ranges_per_stage == 1))
    found = [
        Link("stage", "next stage", "activations", on_wire, each_way, links),
        Link("next stage", "stage", "gradients of activations", on_wire, each_way, links),
    ]
    if model.weight_tying:
        table = vocabulary * model.embedding_dim * element_bytes * config.device.data_parallel_size
        tied = config.micro_batches * table
        found.append(
            Link("last stage", "first stage", "gradient of the tied table", on_wire, tied, pipelines)
        )
    return found
