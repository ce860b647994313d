"""The order in which the stages of a pipeline run the forward and backward passes of a step's micro-batches.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B (PipeDream-Flush): Narayanan et al. 2021, arXiv:2006.09503. Interleaved
1F1B: Narayanan et al. 2021, arXiv:2104.04473 (Megatron-LM). All three keep one version of the weights per step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeAlias

from services.errors import Refused

ScheduleKind: TypeAlias = Literal["gpipe", "1f1b", "interleaved_1f1b"]

LEAST_CREDITS = 1
"""Number of messages that a stage may send to its neighbour ahead of those taken, without which nothing would run.

It suffices for every schedule here if activations and gradients have credits apart. With shared ones, interleaving over
two stages stands still at 1: both kinds then go both ways.
"""


class Pass(NamedTuple):
    """One pass of one micro-batch through one range.

    Attributes:
        is_backward: whether it is a backward pass.
        range_index: index of the range, from 0, in the order of the forward pass.
        micro_batch: index of the micro-batch in the step, or in the lease, from 0.
    """

    is_backward: bool
    range_index: int
    micro_batch: int


@dataclass(frozen=True)
class Schedule:
    """Order of the passes of each stage; range r belongs to stage r mod `stages`.

    Each range runs its forward passes in index order, and its backward passes too: the bits of a sum of gradients
    depend on that order. Every number of micro-batches has a schedule, because a lease may be any part of a step.
    `check_micro_batches` refuses jobs whose steps would leave gaps in it.

    Attributes:
        kind: name of the schedule.
        stages: number of stages.
        micro_batches: number of micro-batches that pass the pipeline.
        ranges_per_stage: number of ranges of each stage; at least 2 if interleaved, else 1.
        hides_transfers: whether 1F1B keeps nearly twice as many micro-batches in flight, so that a stage has work while
            activations and gradients are on their way. Interleaving does so anyway, and GPipe waits for no gradient:
            they ignore it.

    Raises:
        ValueError: a number is out of its bounds.
    """

    kind: ScheduleKind
    stages: int
    micro_batches: int
    ranges_per_stage: int = 1
    hides_transfers: bool = False

    def __post_init__(self) -> None:
        if self.stages < 1 or self.micro_batches < 1:
            raise ValueError(f"no schedule: {self.micro_batches} micro-batches over {self.stages} stages")
        if (self.ranges_per_stage > 1) != (self.kind == "interleaved_1f1b") or self.ranges_per_stage < 1:
            raise ValueError(f"no schedule: {self.kind} with {self.ranges_per_stage} ranges per stage")

    @property
    def ranges(self) -> int:
        """Number of ranges of the whole pipeline."""
        return self.stages * self.ranges_per_stage

    def in_flight_limit(self, stage: int) -> int:
        """Return the most passes whose activations a stage keeps: forward passes without their backward passes.

        With several ranges per stage, each counts. Except for GPipe, the limit does not grow with `micro_batches`.
        """
        return min(self.warm_up(stage) + 1, self.micro_batches * self.ranges_per_stage)

    def passes(self, stage: int) -> Iterator[Pass]:
        """Yield a stage's passes in order; each needs the result of the same micro-batch from its neighbour."""
        forward = self.one_way(stage, is_backward=False)
        backward = self.one_way(stage, is_backward=True)
        for one in chain(islice(forward, self.warm_up(stage)), _alternate(forward, backward), backward):
            if one.micro_batch < self.micro_batches:
                yield one

    def merged_passes(self) -> Iterator[Pass]:
        """Yield the passes of all stages in an order that one thread can run; each stage keeps its own order.

        A stage has its next turn as soon as its pass before has ended and what it needs has been computed.
        """
        orders = [self.passes(stage) for stage in range(self.stages)]
        waiting = [next(order) for order in orders]
        fed: set[Pass] = set()  # computed by the neighbour, and not the next of its stage yet
        ready = deque(stage for stage in range(self.stages) if not self.is_fed(waiting[stage]))
        while ready:
            stage = ready.popleft()
            one = waiting[stage]
            yield one
            following = next(orders[stage], None)
            if following is not None:
                waiting[stage] = following
                if following in fed or not self.is_fed(following):
                    fed.discard(following)
                    ready.append(stage)
            successor = self.successor(one)
            if successor is None:
                continue
            receiver = successor.range_index % self.stages
            if waiting[receiver] == successor:
                ready.append(receiver)
            else:
                fed.add(successor)

    def is_fed(self, one: Pass) -> bool:
        """Return whether a pass takes the result of the same micro-batch's pass through a neighbouring range."""
        return one.range_index != (self.ranges - 1 if one.is_backward else 0)

    def successor(self, one: Pass) -> Pass | None:
        """Return the pass of a neighbouring range that takes a pass's result; None at the pipeline's ends."""
        neighbour = one.range_index + (-1 if one.is_backward else 1)
        return Pass(one.is_backward, neighbour, one.micro_batch) if 0 <= neighbour < self.ranges else None

    def warm_up(self, stage: int) -> int:
        """Return the number of forward passes before forward and backward passes alternate."""
        if self.kind == "gpipe":
            return self.micro_batches - 1
        behind = self.stages - 1 - stage
        if self.kind == "1f1b":
            return behind * (2 if self.hides_transfers else 1)
        return 2 * behind + (self.ranges_per_stage - 1) * self.stages

    def one_way(self, stage: int, *, is_backward: bool) -> Iterator[Pass]:
        """Yield a stage's passes of one direction. Interleaving takes whole groups of `stages` micro-batches.

        The last group is filled up with micro-batches that do not exist: to leave passes out of an order that can't
        deadlock leaves one that can't either.
        """
        turns = range(self.ranges_per_stage)
        group = self.stages if self.ranges_per_stage > 1 else 1
        for first in range(0, self.micro_batches, group):
            for turn in reversed(turns) if is_backward else turns:
                for micro_batch in range(first, first + group):
                    yield Pass(is_backward, turn * self.stages + stage, micro_batch)


def _alternate(forward: Iterator[Pass], backward: Iterator[Pass]) -> Iterator[Pass]:
    """Yield a pass of each in turn, until there are no more forward passes."""
    for one in forward:
        yield one
        yield next(backward)


def check_micro_batches(kind: ScheduleKind, stages: int, micro_batches: int) -> None:
    """Check that a step's micro-batches fill a schedule.

    Args:
        kind: name of the schedule.
        stages: number of stages.
        micro_batches: micro-batches that each pipeline has in a step.

    Raises:
        Refused: interleaving would leave gaps, because the micro-batches are no multiple of the stages.
    """
    rest = micro_batches % stages
    if kind != "interleaved_1f1b" or not rest:
        return
    below, above = micro_batches - rest, micro_batches - rest + stages
    counts = f"{below} or {above}" if below else f"{above}"
    raise Refused(
        f"training_config.gradient_accumulation_steps: {micro_batches} micro-batches for each pipeline of {stages} "
        f"stages, expected a multiple of {stages} for the schedule {kind}; write {counts}, or take the schedule 1f1b"
    )
