"""A schedule simulated pass by pass, for drawings, and to compare the simulation of all stages at once with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from services.pipeline.schedule import Pass, Schedule
from services.pipeline.timing import PassSeconds


class TimedPass(NamedTuple):
    """A pass with its start and stop, in seconds from the start of the step."""

    one: Pass
    start: float
    stop: float


def simulate_passes(schedule: Schedule, seconds: PassSeconds) -> Iterator[TimedPass]:
    """Yield every pass with its times; each starts when its stage is free and its input has arrived."""
    stages = schedule.stages
    free = [0.0] * stages
    arrivals: dict[Pass, float] = {}
    link_free: dict[tuple[int, int], float] = {}  # by sending and receiving stage
    for one in schedule.merged_passes():
        stage = one.range_index % stages
        duration = (seconds.backward if one.is_backward else seconds.forward)[one.range_index]
        start = max(free[stage], arrivals.pop(one, 0.0))
        free[stage] = stop = start + duration
        yield TimedPass(one, start, stop)
        successor = schedule.successor(one)
        if successor is None:
            continue
        receiver = successor.range_index % stages
        if receiver != stage:
            stop = max(stop, link_free.get((stage, receiver), 0.0)) + seconds.transfer
            link_free[stage, receiver] = stop
        arrivals[successor] = stop
