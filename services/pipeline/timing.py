"""Times of a pipeline's schedule: how long a step takes, how long stages are idle, and what transfers cost.

The step is simulated. After a start that depends on the stages, each further micro-batch takes the same
time, so a step of many is simulated for two smaller numbers of them, and continued along the line through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.pipeline.makespan import find_makespan
from services.pipeline.schedule import Schedule

_START_PER_STAGE = 6
"""Micro-batches per stage after which each further one takes the same time.

Stages are full after 2. Where transfers are about as slow as stages, it takes a few rounds more."""
_LEAST_START = 32
_LONGEST_START_PASSES = 1 << 15
"""Maximum number of forward passes that are simulated as the start, which more than 70 stages reach.

Then times are exact without transfers, and too short with slow ones. Interleaved passes are simulated in whole groups.
"""


@dataclass(frozen=True)
class PassSeconds:
    """Seconds that the passes of one micro-batch take.

    Attributes:
        forward: seconds of the forward pass through each range.
        backward: seconds of the backward pass through each range.
        transfer: seconds in which an activation, or its gradient, gets from one stage to the next. A link between two
            stages carries one after the other each way, while both stages compute.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    transfer: float = 0.0

    @classmethod
    def even(cls, ranges: int, forward: float, backward: float, transfer: float = 0.0) -> PassSeconds:
        """Return the same seconds for each range.

        Args:
            ranges: number of ranges.
            forward: seconds of the forward pass through the whole model.
            backward: seconds of the backward pass through the whole model.
            transfer: seconds of a transfer.
        """
        return cls((forward / ranges,) * ranges, (backward / ranges,) * ranges, transfer)


@dataclass(frozen=True)
class ScheduleTimes:
    """Times of one step.

    Attributes:
        makespan_seconds: time from the start of the first forward pass to the end of the last backward pass.
        idle_shares: share of the makespan in which each stage does not compute.
        exposed_seconds: part of the makespan that there would not be if transfers took no time.
        hidden_share: share of the transfers over one link that costs no time; 1 without transfers.
    """

    makespan_seconds: float
    idle_shares: tuple[float, ...]
    exposed_seconds: float
    hidden_share: float

    @property
    def bubble(self) -> float:
        """Share of all stages' time in which they are idle: (p - 1) / (v m + p - 1) with p even stages.

        m is the number of micro-batches, v that of ranges per stage.
        """
        return sum(self.idle_shares) / len(self.idle_shares)


def time_schedule(schedule: Schedule, seconds: PassSeconds) -> ScheduleTimes:
    """Return the times of a schedule.

    The work is bounded by the number of ranges and stages, whatever the number of micro-batches.

    Args:
        schedule: the schedule.
        seconds: seconds of each pass; `forward` and `backward` have one entry for each range.

    Raises:
        ValueError: `seconds` is for another number of ranges.
    """
    if not len(seconds.forward) == len(seconds.backward) == schedule.ranges:
        raise ValueError(f"times of {len(seconds.forward)} ranges for a schedule of {schedule.ranges}")
    makespan = _extrapolate(schedule, seconds)
    exposed = 0.0
    if seconds.transfer and schedule.stages > 1:
        exposed = max(0.0, makespan - _extrapolate(schedule, replace(seconds, transfer=0.0)))
    carried = 2 * schedule.micro_batches * schedule.ranges_per_stage * seconds.transfer
    busy = [
        schedule.micro_batches
        * (sum(seconds.forward[stage :: schedule.stages]) + sum(seconds.backward[stage :: schedule.stages]))
        for stage in range(schedule.stages)
    ]
    return ScheduleTimes(
        makespan_seconds=makespan,
        idle_shares=tuple(max(0.0, 1 - own / makespan) if makespan else 0.0 for own in busy),
        exposed_seconds=exposed,
        hidden_share=max(0.0, 1 - exposed / carried) if carried else 1.0,
    )


def _extrapolate(schedule: Schedule, seconds: PassSeconds) -> float:
    """Return the makespan, from simulations of a bounded number of micro-batches."""
    stages, wanted = schedule.stages, schedule.micro_batches
    start = min(max(_START_PER_STAGE * stages, _LEAST_START), _LONGEST_START_PASSES // schedule.ranges)
    # Interleaving takes groups of `stages` micro-batches, so both simulations end with a last group of the same size.
    group = stages if schedule.ranges_per_stage > 1 else 1
    start = -(-start // group) * group
    if wanted <= 3 * start:
        return _simulate(schedule, seconds)
    one = start + wanted % group
    other = one + start
    first, second = (_simulate(replace(schedule, micro_batches=count), seconds) for count in (one, other))
    return second + (wanted - other) * (second - first) / (other - one)


def _simulate(schedule: Schedule, seconds: PassSeconds) -> float:
    return find_makespan(schedule, [*seconds.forward, *seconds.backward], seconds.transfer)
