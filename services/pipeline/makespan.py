"""The makespan of a schedule, simulated for all stages at once.

A round gives each stage that has what it needs one pass. So there are about as many rounds as a stage has passes and
the pipeline has ranges, and numpy takes each for all stages together. Times do not depend on the rounds: a pass starts
when its stage is free and its input has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.pipeline.schedule import Pass, Schedule

Numbers = npt.NDArray[np.int64]
"""Numbers of passes: direction x ranges x micro-batches + range x micro-batches + micro-batch."""

_NO_PASS = -(1 << 60)
_NOT_ARRIVED = -1.0


@dataclass(frozen=True)
class _Ways:
    """Where results go, by the direction and range of the pass that computes them.

    Attributes:
        distance: number of the pass that takes the result, minus that of the pass itself; 0 if none does.
        link: number of the link that the result crosses; -1 if it crosses none.
        links: number of links.
    """

    distance: Numbers
    link: Numbers
    links: int


def find_makespan(schedule: Schedule, pass_seconds: Sequence[float], transfer_seconds: float) -> float:
    """Return the time from the start of the first forward pass to the end of the last backward pass, in seconds.

    Args:
        schedule: the schedule.
        pass_seconds: seconds of the forward pass through each range, then of the backward pass through each.
        transfer_seconds: seconds in which a result gets to another stage. A link between two stages carries one after
            the other each way.
    """
    count, passes = schedule.micro_batches, 2 * schedule.ranges * schedule.micro_batches
    ways, seconds = _find_ways(schedule), np.array(pass_seconds, np.float64)
    # Two places more than passes: one that is never fed and ends each stage's order, and one for unused results.
    last, unused = passes, passes + 1
    orders = np.pad(_number_passes(schedule), ((0, 0), (0, 1)), constant_values=last)
    arrivals = np.full(passes + 2, _NOT_ARRIVED)
    arrivals[:count] = arrivals[passes - count : passes] = 0.0  # no neighbour feeds these
    stages, turns = np.arange(schedule.stages), np.zeros(schedule.stages, np.int64)
    free, link_free = np.zeros(schedule.stages), np.zeros(ways.links)
    while True:
        wanted = orders[stages, turns]
        ready = np.flatnonzero(arrivals[wanted] >= 0)
        if not ready.size:
            return float(free.max())
        run = wanted[ready]
        way = run // count
        stops = np.maximum(free[ready], arrivals[run]) + seconds[way]
        free[ready] = stops
        turns[ready] += 1
        if transfer_seconds:
            crossing = np.flatnonzero(ways.link[way] >= 0)
            links = ways.link[way[crossing]]
            stops[crossing] = np.maximum(stops[crossing], link_free[links]) + transfer_seconds
            link_free[links] = stops[crossing]
        arrivals[np.where(ways.distance[way], run + ways.distance[way], unused)] = stops


def _number_passes(schedule: Schedule) -> Numbers:
    """Return the numbers of each stage's passes in order, [stages, passes of a stage]."""
    count, stages = schedule.micro_batches, schedule.stages

    def number(passes: Iterable[Pass]) -> Numbers:
        return np.array(
            [
                (one.is_backward * schedule.ranges + one.range_index) * count + one.micro_batch
                if one.micro_batch < count
                else _NO_PASS
                for one in passes
            ]
        )

    forward, backward = (number(schedule.one_way(0, is_backward=each)) for each in (False, True))
    turn, of_stage = np.arange(forward.size), count * np.arange(stages)[:, np.newaxis]
    warm_up = np.array([[schedule.warm_up(stage)] for stage in range(stages)])
    # As in Schedule.passes: the warm-up, then a forward and a backward pass in turn, then what is left.
    forward_place = np.where(turn < warm_up, turn, 2 * turn - warm_up)
    backward_place = np.minimum(warm_up + 2 * turn + 1, forward.size + turn)
    orders = np.empty((stages, 2 * forward.size), np.int64)
    np.put_along_axis(orders, forward_place, forward + of_stage, axis=1)
    np.put_along_axis(orders, backward_place, backward + of_stage, axis=1)
    return orders[orders >= 0].reshape(stages, -1)


def _find_ways(schedule: Schedule) -> _Ways:
    distances, links, known = [], [], dict[tuple[int, int], int]()
    for is_backward in (False, True):
        for range_index in range(schedule.ranges):
            taker = schedule.successor(Pass(is_backward, range_index, 0))
            distance, link = 0, -1
            if taker is not None:
                distance = (taker.range_index - range_index) * schedule.micro_batches
                stage, receiver = range_index % schedule.stages, taker.range_index % schedule.stages
                if receiver != stage:
                    link = known.setdefault((stage, receiver), len(known))
            distances.append(distance)
            links.append(link)
    return _Ways(np.array(distances), np.array(links), len(known))
