"""Splits of a pipeline that are balanced by measured times, within the memory of a chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

from services.config.balance import divide_by_cost, divide_evenly
from services.config.job import JobConfig
from services.config.pipeline import PipelineConfig
from services.pipeline.split import BlockRange
from services.pipeline.timing import PassSeconds, time_schedule
from services.sizing.device_memory import estimate_device_memory
from services.sizing.portion import Portion


@dataclass(frozen=True)
class PassTime:
    """Time that a micro-batch takes.

    Attributes:
        forward_seconds: time of the forward pass.
        backward_seconds: time of the backward pass.
    """

    forward_seconds: float
    backward_seconds: float

    @property
    def seconds(self) -> float:
        """Time of both passes."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True)
class BlockTimes:
    """Times of a model's blocks.

    Attributes:
        blocks: time of each block. The first one includes the embedding, the last one norm, projection and loss.
        border: time of each range besides its blocks, such as that in which activations go to the mesh and back.
    """

    blocks: tuple[PassTime, ...]
    border: PassTime

    def of_ranges(self, ranges: Sequence[BlockRange]) -> PassSeconds:
        """Return the time of each range, without transfers to other workers."""
        return PassSeconds(
            forward=[
                self.border.forward_seconds
                + sum(block.forward_seconds for block in self.blocks[each.first : each.stop])
                for each in ranges
            ],
            backward=[
                self.border.backward_seconds
                + sum(block.backward_seconds for block in self.blocks[each.first : each.stop])
                for each in ranges
            ],
        )


@dataclass(frozen=True)
class MeasuredSplit:
    """What a split costs.

    Attributes:
        blocks_per_stage: number of blocks of each stage.
        stage_seconds: time that each stage takes for a micro-batch, forward and backward.
        memory_bytes: peak memory of a chip of each stage; None if only workers know it.
        bubble: share of all stages' time in which they are idle.
        step_seconds: time of a pipeline's passes in a step, without transfers to other workers.
    """

    blocks_per_stage: tuple[int, ...]
    stage_seconds: tuple[float, ...]
    memory_bytes: tuple[int | None, ...]
    bubble: float
    step_seconds: float


class MeasuredBalance:
    """Splits of a job's pipeline, with their measured times and their estimated memory.

    Args:
        config: config of a job with a pipeline.
        times: measured times of the model's blocks.
        vocabulary: number of tokens.
        dtype: dtype of weights and activations.
        banks: number of DRAM banks of a chip.

    Attributes:
        times: measured times of the model's blocks.
    """

    def __init__(
        self, config: JobConfig, times: BlockTimes, vocabulary: int, *, dtype: str, banks: int
    ) -> None:
        assert config.pipeline is not None
        self._config = config
        self._pipeline: PipelineConfig = config.pipeline
        self.times = times
        self._vocabulary = vocabulary
        self._dtype = dtype
        self._banks = banks
        self._memory_bytes = cache(self._estimate_bytes)

    def find(self, chip_bytes: int | None = None) -> tuple[int, ...] | None:
        """Return the blocks of each stage of the balanced split; None if the chips hold no split.

        The slowest stage is as fast as possible. Then the stage with most memory has as little as possible. Where only
        workers know the memory, the blocks that a stage keeps values of count in its place.

        An interleaved stage has blocks from several places of the model. So all blocks but the first and the last one
        count with their mean.

        Args:
            chip_bytes: memory of a chip; None for no limit.
        """
        pipeline, blocks = self._pipeline, self._count_seconds()
        sums = [0.0, *accumulate(blocks)]
        borders = pipeline.ranges_per_stage * self.times.border.seconds
        schedule = pipeline.make_schedule(self._config.gradient_accumulation_steps)
        in_flight = [schedule.in_flight_limit(stage) for stage in range(pipeline.stages)]

        def find_seconds(stage: int, first: int, stop: int) -> float:
            memory_bytes = None if chip_bytes is None else self._memory_bytes(stage, stop - first)
            if chip_bytes is not None and memory_bytes is not None and memory_bytes > chip_bytes:
                return inf
            return borders + sums[stop] - sums[first]

        fastest = self._divide(find_seconds)
        if fastest is None:
            return None
        stops = list(accumulate(fastest))
        limit = max(
            find_seconds(stage, stop - count, stop)
            for stage, (stop, count) in enumerate(zip(stops, fastest, strict=True))
        )

        def find_bytes(stage: int, first: int, stop: int) -> float:
            if find_seconds(stage, first, stop) > limit:
                return inf
            memory_bytes = self._memory_bytes(stage, stop - first)
            return in_flight[stage] * (stop - first) if memory_bytes is None else memory_bytes

        return self._divide(find_bytes)

    def describe(self, blocks_per_stage: tuple[int, ...]) -> MeasuredSplit:
        """Return what a split of the job's blocks costs."""
        pipeline = self._with_blocks(blocks_per_stage)
        seconds = self.times.of_ranges(pipeline.split.ranges)
        both = [one + other for one, other in zip(seconds.forward, seconds.backward, strict=True)]
        times = time_schedule(pipeline.make_schedule(self._config.gradient_accumulation_steps), seconds)
        return MeasuredSplit(
            blocks_per_stage,
            tuple(sum(both[stage :: pipeline.stages]) for stage in range(pipeline.stages)),
            tuple(self._memory_bytes(stage, count) for stage, count in enumerate(blocks_per_stage)),
            times.bubble,
            times.makespan_seconds,
        )

    def _with_blocks(self, blocks_per_stage: tuple[int, ...]) -> PipelineConfig:
        fields = {**self._pipeline.model_dump(), "blocks_per_stage": blocks_per_stage}
        return PipelineConfig.model_validate(fields)

    def _divide(self, cost: Callable[[int, int, int], float]) -> tuple[int, ...] | None:
        pipeline = self._pipeline
        return divide_by_cost(len(self.times.blocks), pipeline.stages, pipeline.ranges_per_stage, cost)

    def _count_seconds(self) -> list[float]:
        """Return the time of each block as splits count it."""
        found = [each.seconds for each in self.times.blocks]
        if self._pipeline.ranges_per_stage > 1 and len(found) > 2:
            inner = found[1:-1]
            found[1:-1] = [sum(inner) / len(inner)] * len(inner)
        return found

    def _estimate_bytes(self, stage: int, count: int) -> int | None:
        """Return the memory of a stage with some blocks, which does not depend on the blocks of the others."""
        pipeline, rest = self._pipeline, len(self.times.blocks) - count
        others = divide_evenly(rest, pipeline.stages - 1)
        portion = Portion.of_stage(
            self._with_blocks((*others[:stage], count, *others[stage:])),
            stage,
            self._config.gradient_accumulation_steps,
        )
        memory = estimate_device_memory(
            self._config, self._vocabulary, dtype=self._dtype, banks=self._banks, portion=portion
        )
        return None if memory is None else memory.total_bytes
