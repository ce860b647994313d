"""The pipeline of a simulated job: where its ranges meet in the layout, and what passes between them.

An activation is the weights of the ranges that it has passed. So the last range can tell the key of its micro-batch's
gradient, which goes back through all ranges, and no array may be taken by another pass than the one it was meant for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from services.pipeline.schedule import Pass, Schedule, ScheduleKind
from services.pipeline.split import StageRun
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts, join_parts

ArrayKind = Literal["activation", "gradient", "tied"]
KINDS: tuple[ArrayKind, ...] = ("activation", "gradient", "tied")
"""Kinds of arrays, each with a lane of its own in each direction of a link."""


class PassArray(NamedTuple):
    """What a pass sends to another.

    Attributes:
        lease: lease of the passes.
        kind: kind of the array.
        to: the pass that takes it; of the last range's forward pass for a tied part.
        content: weights of the ranges passed, by chunk, or the key of the gradient.
    """

    lease: int
    kind: ArrayKind
    to: Pass
    content: Mapping[int, int] | int


@dataclass(frozen=True)
class SimulatedPipeline:
    """How a job is split.

    Attributes:
        kind: name of the schedule.
        stages: number of stages.
        ranges_per_stage: number of ranges of each stage.
        borders: first element of each range, and the number of elements of the layout.
        tied_elements: size of the table that the last range shares with the first one; 0 for none.
        most_stages: largest number of stages that fit a worker.
        hides_transfers: see `Schedule`.
    """

    kind: ScheduleKind
    stages: int
    ranges_per_stage: int
    borders: tuple[int, ...]
    tied_elements: int
    most_stages: int
    hides_transfers: bool

    @classmethod
    def draw(cls, draw: random.Random, elements: int, workers: int) -> SimulatedPipeline:
        """Draw a split of a layout, so that this many workers suffice."""
        stages = draw.choice((2, 2, 3, 4))
        kind: ScheduleKind = draw.choice(("gpipe", "1f1b", "1f1b", "interleaved_1f1b"))
        ranges_per_stage = draw.choice((2, 3)) if kind == "interleaved_1f1b" else 1
        wanted = stages * ranges_per_stage - 1
        ends_of_chunks = list(range(CHUNK_ELEMENTS, elements, CHUNK_ELEMENTS))
        borders = set(draw.sample(ends_of_chunks, min(draw.choice((0, 1, 2)), wanted, len(ends_of_chunks))))
        while len(borders) < wanted:
            borders.add(draw.randrange(1, elements))
        first_border = min(borders)
        return cls(
            kind,
            stages,
            ranges_per_stage,
            (0, *sorted(borders), elements),
            draw.choice((0, draw.randint(1, first_border))),
            draw.randint(-(-stages // workers), stages),
            draw.random() < 0.5,
        )

    @property
    def ranges(self) -> int:
        """Number of ranges."""
        return self.stages * self.ranges_per_stage

    def ranges_of(self, run: StageRun) -> list[int]:
        """Return the ranges of some stages, in order."""
        return [each for each in range(self.ranges) if run.first <= each % self.stages < run.stop]

    def part_of(self, range_index: int) -> LayoutParts:
        """Return the part of the layout that a range has."""
        return LayoutParts([(self.borders[range_index], self.borders[range_index + 1])])

    def loads_of(self, range_index: int) -> LayoutParts:
        """Return the parts of the layout whose weights a range needs."""
        return join_parts([self.part_of(range_index), *self._shared([range_index])])

    def gradients_of(self, run: StageRun) -> LayoutParts:
        """Return the parts of the layout whose gradients a worker with these stages has."""
        return join_parts(map(self.part_of, self.ranges_of(run)))

    def shared_of(self, run: StageRun) -> LayoutParts:
        """Return the further part whose weights a worker with these stages needs: the tied table."""
        ranges = self.ranges_of(run)
        return join_parts([] if 0 in ranges else self._shared(ranges))

    def _shared(self, ranges: Iterable[int]) -> list[LayoutParts]:
        return (
            [LayoutParts([(0, self.tied_elements)])]
            if self.tied_elements and self.ranges - 1 in ranges
            else []
        )

    def schedule(self, micro_batches: int) -> Schedule:
        """Return the order of a lease's passes."""
        return Schedule(self.kind, self.stages, micro_batches, self.ranges_per_stage, self.hides_transfers)

    def passes_of(self, run: StageRun, micro_batches: int) -> Iterator[Pass]:
        """Yield the passes of a worker with these stages, in order."""
        schedule = self.schedule(micro_batches)
        if run.count == 1:
            return schedule.passes(run.first)
        return (
            one for one in schedule.merged_passes() if run.first <= one.range_index % self.stages < run.stop
        )

    @property
    def has_tied_part(self) -> bool:
        """Whether the last range sends the first one a part of its gradient."""
        return self.tied_elements > 0


def join_weights(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Return the weights of more ranges. A chunk that has not the same weights in both gets unknown ones."""
    joined = dict(one)
    for chunk, weights in other.items():
        known = joined.setdefault(chunk, weights)
        if known != weights:
            joined[chunk] = hash((known, weights))
    return joined
