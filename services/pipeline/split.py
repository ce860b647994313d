"""How the blocks of a model are split over the stages of a pipeline, and over the ranges of each stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class StageRun:
    """Neighbouring stages of a pipeline.

    Attributes:
        first: first stage.
        count: number of stages, at least 1.
    """

    first: int
    count: int

    @property
    def stop(self) -> int:
        """Stage after the last one."""
        return self.first + self.count

    def is_in(self, other: StageRun) -> bool:
        """Return whether all of these stages are among the other ones."""
        return other.first <= self.first and self.stop <= other.stop

    def __str__(self) -> str:
        last = self.stop - 1
        return f"stage {self.first}" if self.count == 1 else f"stages {self.first}-{last}"


@dataclass(frozen=True)
class BlockRange:
    """A contiguous run of a model's blocks: `first` to `stop` - 1.

    The first range also has embedding and positions. The last one also has the last norm, the projection and the loss.

    Attributes:
        first: first block of the range, from 0.
        stop: first block after the range.
        blocks: number of blocks of the whole model.

    Raises:
        ValueError: the range is empty, or not within the model.
    """

    first: int
    stop: int
    blocks: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop <= self.blocks:
            raise ValueError(f"no range of a model of {self.blocks} blocks: {self.first} to {self.stop}")

    @classmethod
    def whole(cls, blocks: int) -> BlockRange:
        """Return the range of all blocks."""
        return cls(0, blocks, blocks)

    @property
    def is_first(self) -> bool:
        """Whether the range has embedding and positions."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether the range has the last norm, the projection and the loss."""
        return self.stop == self.blocks

    @property
    def is_whole(self) -> bool:
        """Whether the range is the whole model."""
        return self.is_first and self.is_last

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class Split:
    """The ranges of a pipeline: range r belongs to stage r mod `stages`, and micro-batches pass them in order.

    A stage's blocks are divided over its ranges as evenly as possible; its earlier ranges have the remainder.

    Attributes:
        blocks_per_stage: number of blocks of each stage, each at least `ranges_per_stage`.
        ranges_per_stage: number of ranges of each stage; more than 1 in the interleaved schedule only.

    Raises:
        ValueError: there is no stage, or one has fewer blocks than ranges.
    """

    blocks_per_stage: tuple[int, ...]
    ranges_per_stage: int = 1

    def __post_init__(self) -> None:
        if not self.blocks_per_stage or not 1 <= self.ranges_per_stage <= min(self.blocks_per_stage):
            raise ValueError(f"no split: {self.blocks_per_stage} in {self.ranges_per_stage} ranges per stage")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.blocks_per_stage)

    @property
    def blocks(self) -> int:
        """Number of blocks of the whole model."""
        return sum(self.blocks_per_stage)

    @cached_property
    def ranges(self) -> tuple[BlockRange, ...]:
        """All ranges, in the order in which a forward pass runs them."""
        lengths = [
            blocks // self.ranges_per_stage + (turn < blocks % self.ranges_per_stage)
            for turn in range(self.ranges_per_stage)
            for blocks in self.blocks_per_stage
        ]
        stops = accumulate(lengths)
        return tuple(
            BlockRange(stop - length, stop, self.blocks) for length, stop in zip(lengths, stops, strict=True)
        )

    def stage_of(self, range_index: int) -> int:
        """Return the stage that a range belongs to."""
        return range_index % self.stages

    def ranges_of(self, stage: int) -> tuple[BlockRange, ...]:
        """Return a stage's ranges, in order."""
        return self.ranges[stage :: self.stages]
