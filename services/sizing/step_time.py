"""Time of a job's steps on links of a given rate: computing, transfers that computing does not hide, and update.

A step is the least time of `critical_path.py`, with what the protocol adds. Each host has one link, and the busiest one
decides. Computing takes given times for each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from services.config.balance import count_work
from services.config.job import JobConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import model_parts
from services.pipeline.split import BlockRange
from services.pipeline.timing import time_schedule
from services.sizing.critical_path import Parts, critical_path
from services.sizing.disk import estimate_checkpoints
from services.sizing.flops import count_flops_per_token
from services.sizing.measured_split import BlockTimes, PassTime
from services.sizing.share import FLOAT32_BYTES
from services.tensors.chunk_messages import bytes_per_element
from services.tensors.layout import CHUNK_ELEMENTS

LINK_SHARE = 0.94
"""Share of a link that payload fills, as `make bench ONLY=links` measures it at 1 Gbit/s."""
DISK_BYTES_PER_SECOND = 500e6
"""Assumed rate at which a checkpoint is written."""
_UPDATE_SECONDS = 5.4e-9
"""Time in which AdamW updates an element and rounds it: `make bench ONLY=adamw_over_memcpy` on a host of two cores."""
_SUM_SECONDS = 5.2e-9
"""Time in which an element of a gradient is added and staged, measured there too."""
_TURN_SECONDS = 0.01
"""Time of a step in which messages turn around: leases, COMMIT, the first and the last chunk's way through a role."""


@dataclass(frozen=True)
class Sharing:
    """How a step's micro-batches are shared out.

    Attributes:
        most: micro-batches of the worker, or row of workers, with most of them.
        nodes: number of sums that all of them send.
        busy: number of workers, or rows of workers, that have some.
    """

    most: int
    nodes: int
    busy: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step.

    Attributes:
        computing_seconds: forward and backward passes of the worker, or row of workers, with most of them.
        weights_seconds: transfer of the weights on the busiest link.
        weights_exposed_seconds: part of it that no pass hides.
        gradients_seconds: transfer of the gradients on the busiest link.
        gradients_exposed_seconds: part of it that no pass hides.
        update_seconds: what sums, update and messages add.
    """

    computing_seconds: float
    weights_seconds: float
    weights_exposed_seconds: float
    gradients_seconds: float
    gradients_exposed_seconds: float
    update_seconds: float

    @property
    def step_seconds(self) -> float:
        """Time from COMMIT to COMMIT."""
        exposed = self.weights_exposed_seconds + self.gradients_exposed_seconds
        return self.computing_seconds + exposed + self.update_seconds


@dataclass(frozen=True)
class JobTime:
    """Seconds of a job that starts with new weights.

    Attributes:
        start_seconds: from its first worker to its first step: the initial weights, and their checkpoint.
        steps_seconds: its steps.
        evaluations: number of its evaluations.
        evaluation_seconds: what an evaluation adds between two steps; None if its batches are known to workers only.
        checkpoint_seconds: one checkpoint: its way from shards, and writing it.
        end_seconds: from the last step to the end, for the last evaluation beside the last checkpoint.
    """

    start_seconds: float
    steps_seconds: float
    evaluations: int
    evaluation_seconds: float | None
    checkpoint_seconds: float
    end_seconds: float

    @property
    def job_seconds(self) -> float:
        """All of it, as far as it is known."""
        between = (self.evaluations - 1) * (self.evaluation_seconds or 0.0)
        return self.start_seconds + self.steps_seconds + between + self.end_seconds


def estimate_block_times(config: JobConfig, flops_per_second: float) -> BlockTimes | None:
    """Return the time of each block for a micro-batch; None for models whose operations are not counted.

    A backward pass takes twice as long as a forward pass.

    Args:
        config: config of the job, whose vocabulary is known.
        flops_per_second: operations that the mesh of a worker does in a second.
    """
    model, vocabulary = config.model, config.vocabulary
    if vocabulary is None or not isinstance(model, GPT2Config | LlamaConfig):
        return None
    flops = count_flops_per_token(model, vocabulary)
    assert flops is not None
    forward = flops * config.batch_size * model.max_sequence_length / flops_per_second / 3
    block, projection = count_work(model, vocabulary)
    share = 1 / (model.num_blocks * block + projection)
    seconds = [forward * share * block] * model.num_blocks
    seconds[-1] += forward * share * projection
    return BlockTimes(tuple(PassTime(each, 2 * each) for each in seconds), PassTime(0.0, 0.0))


def estimate_step_time(
    config: JobConfig,
    times: BlockTimes,
    sharing: Sharing,
    *,
    link_bits: float,
    workers: int,
    tiers: int,
    shards: int,
) -> StepTime:
    """Return the time of a step.

    Args:
        config: config of a job whose parameters are known.
        times: times of the model's blocks for a micro-batch.
        sharing: how the micro-batches are shared out.
        link_bits: bits a second of each host's link, each way.
        workers: number of worker daemons.
        tiers: 3 for an optimizer of its own, 2 for one inside the aggregator.
        shards: number of shards on hosts of their own; 0 for none.
    """
    wire, holders = config.plan().wire, config.count_holders(workers)
    gradients, weights = bytes_per_element(wire.gradients), bytes_per_element(wire.weights)
    # Workers that compute nothing of the step get their weights last, which hold up nothing.
    up, down, last = float(sharing.nodes * gradients), float(sharing.busy * weights), float(holders * weights)
    if shards:  # a worker's own link may be the busiest one
        up, down, last = max(up / shards, gradients), max(down / shards, weights), max(last / shards, weights)
    elif tiers == 3:  # the aggregator passes on the sum in float32
        up = max(up, FLOAT32_BYTES)
    second = 8 / (LINK_SHARE * link_bits)
    ranges = config.pipeline.split.ranges if config.pipeline else (BlockRange.whole(len(times.blocks)),)
    passes = times.of_ranges(ranges)
    alone = PassTime(sum(passes.forward), sum(passes.backward))
    computing: float = sharing.most * alone.seconds
    if config.pipeline is not None:
        passes = replace(passes, transfer=second * _activation_bytes(config))
        computing = time_schedule(config.pipeline.make_schedule(sharing.most), passes).makespan_seconds
    uses = tuple(_uses(config, times))
    parts = Parts(
        elements=config.parameters.number,
        pass_seconds=alone.seconds,
        uses=uses,
        ready=tuple(_ready(uses, alone)),
        down_seconds=second * down,
        up_seconds=second * up,
        before_seconds=computing - alone.seconds,
    )
    transfers = critical_path(parts)
    whole = critical_path(replace(parts, sum_seconds=_SUM_SECONDS, update_seconds=_UPDATE_SECONDS))
    hops = second * CHUNK_ELEMENTS * (FLOAT32_BYTES + weights) if tiers == 3 and not shards else 0.0
    hops = min(hops, parts.transfer_seconds)
    return StepTime(
        computing_seconds=computing,
        weights_seconds=parts.elements * second * last,
        weights_exposed_seconds=transfers.pass_delay,
        gradients_seconds=parts.elements * parts.up_seconds,
        gradients_exposed_seconds=transfers.step_seconds - transfers.pass_end,
        update_seconds=whole.step_seconds - transfers.step_seconds + hops + _TURN_SECONDS,
    )


def estimate_job_time(
    config: JobConfig,
    times: BlockTimes,
    step: StepTime,
    *,
    link_bits: float,
    workers: int,
    shards: int,
    evaluation_batches: int | None,
) -> JobTime:
    """Return the time of a job.

    Args:
        config: config of a job whose parameters are known.
        times: times of the model's blocks for a micro-batch.
        step: time of a step.
        link_bits: bits a second of each host's link, each way.
        workers: number of worker daemons.
        shards: number of shards on hosts of their own; 0 for none.
        evaluation_batches: number of batches of an evaluation; None if workers know it only.
    """
    second, elements = 8 / (LINK_SHARE * link_bits), config.parameters.number
    checkpoint_bytes = estimate_checkpoints(config, elements).bytes_each
    checkpoint = checkpoint_bytes / DISK_BYTES_PER_SECOND
    if shards:  # the aggregator collects it
        checkpoint += second * checkpoint_bytes
    # The first pass starts with all weights, and so does an evaluation. The step after it has them already.
    hidden = step.weights_seconds - step.weights_exposed_seconds
    passes = None
    if evaluation_batches is not None:
        passes = _evaluation_passes_seconds(config, times, workers=workers, batches=evaluation_batches)
    return JobTime(
        start_seconds=second * FLOAT32_BYTES * elements + checkpoint + hidden,
        steps_seconds=config.steps * step.step_seconds,
        evaluations=config.plan().evaluations_after(0),
        evaluation_seconds=None if passes is None else hidden + passes,
        checkpoint_seconds=checkpoint,
        end_seconds=checkpoint if passes is None else max(checkpoint, step.weights_seconds + passes),
    )


def _evaluation_passes_seconds(config: JobConfig, times: BlockTimes, *, workers: int, batches: int) -> float:
    forward = sum(each.forward_seconds for each in times.blocks) + times.border.forward_seconds
    rounds = -(-batches // config.count_holders(workers))
    return rounds * forward * config.validation_batch_size / config.batch_size


def _activation_bytes(config: JobConfig) -> int:
    """Return the bytes of a micro-batch's activations between two stages."""
    model = config.model
    assert isinstance(model, GPT2Config | LlamaConfig)
    element_bytes = 4 if (config.wire_dtype.activations or config.device.dtype) == "float32" else 2
    return config.batch_size * model.max_sequence_length * model.embedding_dim * element_bytes


def _uses(config: JobConfig, times: BlockTimes) -> Iterator[tuple[int, float]]:
    """Yield for each parameter where it stops in the layout, and when a forward pass first uses it."""
    assert isinstance(config.model, GPT2Config | LlamaConfig)
    forward = [each.forward_seconds for each in times.blocks]
    projection = max(0.0, forward[-1] - forward[-2]) if len(forward) > 1 else 0.0
    forward[-1] -= projection
    stop, began = 0, 0.0
    for part in model_parts(config.model, config.vocabulary or 0):
        size = part.elements // part.copies
        for copy in range(part.copies):
            takes = forward[copy] if part.name == "blocks" else 0.0
            first = stop
            for shape in part.shapes.values():
                yield stop + prod(shape.shape), began + takes * (stop - first) / size
                stop += prod(shape.shape)
            began += takes


def _ready(uses: Sequence[tuple[int, float]], whole: PassTime) -> Iterator[tuple[int, float]]:
    """Yield the offset of each parameter, last one first, and when a pass has completed its gradient.

    A backward pass is a forward pass backwards: a gradient is complete where the forward pass first used the parameter.
    """
    forward, backward = whole.forward_seconds, whole.backward_seconds
    offsets = (0, *(stop for stop, _ in uses))
    for offset, (_, seconds) in reversed(list(zip(offsets, uses, strict=False))):
        yield offset, forward + backward * (1 - min(1.0, seconds / forward) if forward else 1.0)
