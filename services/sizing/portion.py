"""What a mesh has of a model: all of it, or a stage's ranges of blocks; and how many micro-batches' values it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.config.parameters import ModelPart
from services.config.pipeline import PipelineConfig
from services.pipeline.schedule import Schedule
from services.pipeline.split import BlockRange

_GROUPS_TO_THE_PEAK = 4
"""Groups of `stages` micro-batches after which an interleaved schedule keeps as much as it ever will."""


@dataclass(frozen=True)
class Portion:
    """A portion of a model, and the values that are kept for it at most.

    Attributes:
        ranges: ranges of blocks, in the order of the forward pass.
        kept_blocks: most blocks whose values are kept at once, each counted for each micro-batch in flight.
        kept_losses: most micro-batches whose loss is kept at once; 0 if the portion has no loss.
        kept_at_embedding: most blocks whose values are kept when a backward pass arrives at the embedding.
    """

    ranges: tuple[BlockRange, ...]
    kept_blocks: int
    kept_losses: int
    kept_at_embedding: int

    @classmethod
    def whole(cls, blocks: int) -> Portion:
        """Return the whole model, through which micro-batches go one after the other."""
        return cls((BlockRange.whole(blocks),), blocks, 1, 0)

    @classmethod
    def of_stage(
        cls, pipeline: PipelineConfig, stage: int, micro_batches: int, *, worker_stages: int = 1
    ) -> Portion:
        """Return the portion of a stage.

        Args:
            pipeline: the pipeline.
            stage: the stage, from 0.
            micro_batches: micro-batches of a pipeline in a step.
            worker_stages: number of stages of the worker that has this one.
        """
        ranges = pipeline.split.ranges_of(stage)
        schedule = pipeline.make_schedule(micro_batches, worker_stages=worker_stages)
        in_flight = schedule.in_flight_limit(stage)
        if len(ranges) == 1:
            blocks = len(ranges[0])
            return cls(ranges, in_flight * blocks, in_flight * ranges[0].is_last, (in_flight - 1) * blocks)
        if len({len(each) for each in ranges}) == 1 and 0 < stage < pipeline.stages - 1:
            return cls(ranges, in_flight * len(ranges[0]), 0, 0)
        most = _GROUPS_TO_THE_PEAK * pipeline.stages
        return _count_kept(replace(schedule, micro_batches=min(micro_batches, most)), stage, ranges)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return sum(map(len, self.ranges))

    @property
    def has_first(self) -> bool:
        """Whether the portion has embedding and positions."""
        return self.ranges[0].is_first

    @property
    def has_last(self) -> bool:
        """Whether the portion has the last norm, the projection and the loss."""
        return self.ranges[-1].is_last

    def parameters(self, parts: Sequence[ModelPart]) -> tuple[ModelPart, ...]:
        """Return the parameters of the portion; a tied projection is the first stage's."""
        found = []
        for part in parts:
            if part.name == "blocks":
                found.append(replace(part, copies=self.blocks))
            elif self.has_first if part.name == "embeddings" else self.has_last:
                found.append(part)
        return tuple(found)

    def held_parts(self, parts: Sequence[ModelPart]) -> tuple[ModelPart, ...]:
        """Return what the portion has on its mesh: its parameters, and a copy of the table for a tied projection."""
        held = self.parameters(parts)
        tied = any(part.name == "projection" and not part.shapes for part in held)
        if not tied or self.has_first:
            return held
        embeddings = next(part for part in parts if part.name == "embeddings")
        table = dict([next(iter(embeddings.shapes.items()))])
        return (*held, replace(embeddings, shapes=table))


def _count_kept(schedule: Schedule, stage: int, ranges: tuple[BlockRange, ...]) -> Portion:
    """Return the portion of a stage, from the passes of its schedule."""
    blocks = losses = most_blocks = most_losses = at_embedding = 0
    for one in schedule.passes(stage):
        passed, change = ranges[one.range_index // schedule.stages], -1 if one.is_backward else 1
        blocks += change * len(passed)
        losses += change * passed.is_last
        most_blocks, most_losses = max(blocks, most_blocks), max(losses, most_losses)
        if one.is_backward and passed.is_first:
            at_embedding = max(blocks, at_embedding)
    return Portion(ranges, most_blocks, most_losses, at_embedding)
