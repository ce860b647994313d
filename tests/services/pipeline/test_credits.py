"""Workers whose sends and receives block come to the end of every schedule with these credits, and not with fewer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.pipeline.credits import Credits
from services.pipeline.schedule import LEAST_CREDITS, Pass, Schedule, ScheduleKind

ONE_EACH = Credits(LEAST_CREDITS, LEAST_CREDITS, LEAST_CREDITS)
LaneKey: TypeAlias = tuple[int, int, str]
"""Stage that sends, stage that takes, and kind."""


class Unsent(NamedTuple):
    lane: LaneKey
    limit: int
    array: Pass | int


@dataclass
class Worker:
    """A worker's passes in its order, and what it must send before it goes on."""

    passes: deque[Pass]
    unsent: deque[Unsent] = field(default_factory=deque)


class Row:
    """Workers with the stages of a pipeline, which `run` gives turns at random.

    Args:
        schedule: the schedule.
        owners: worker of each stage.
        credits: credits of the links.
    """

    def __init__(self, schedule: Schedule, owners: list[int], credits: Credits) -> None:
        self._schedule, self._owners, self._credits = schedule, owners, credits
        self._lanes: dict[LaneKey, deque[Pass | int]] = {}
        merged = list(schedule.merged_passes())
        self._workers = [
            Worker(deque(one for one in merged if owners[self._stage(one)] == worker))
            for worker in range(owners[-1] + 1)
        ]

    def ends(self, random: Random) -> bool:
        """Return whether all workers come to their end."""
        turns = list(range(len(self._workers)))
        while True:
            random.shuffle(turns)
            for worker in turns:
                if sum(self._advance(worker) for _ in range(random.choice((1, 3, 30)))):
                    break
            else:
                return not any(each.passes or each.unsent for each in self._workers)

    def _stage(self, one: Pass) -> int:
        return one.range_index % self._schedule.stages

    def _advance(self, index: int) -> bool:
        worker = self._workers[index]
        if worker.unsent:
            lane = self._lane(worker.unsent[0].lane)
            if len(lane) >= worker.unsent[0].limit:
                return False
            lane.append(worker.unsent.popleft().array)
            return True
        if not worker.passes:
            return False
        one = worker.passes[0]
        wanted = self._wanted(index, one)
        if not all(lane for lane, _ in wanted):
            return False
        for lane, array in wanted:
            assert lane.popleft() == array, "arrays must be taken in the order in which they are sent"
        worker.passes.popleft()
        worker.unsent.extend(self._results(index, one))
        return True

    def _lane(self, key: LaneKey) -> deque[Pass | int]:
        return self._lanes.setdefault(key, deque())

    def _wanted(self, worker: int, one: Pass) -> list[tuple[deque[Pass | int], Pass | int]]:
        """Return the lanes that a pass takes arrays from, and the arrays."""
        wanted: list[tuple[deque[Pass | int], Pass | int]] = []
        schedule, stage = self._schedule, self._stage(one)
        if schedule.is_fed(one):
            source = (one.range_index + (1 if one.is_backward else -1)) % schedule.stages
            if self._owners[source] != worker:
                wanted.append((self._lane((source, stage, kind(one))), one))
        if one.is_backward and one.range_index == 0 and self._owners[-1] != worker:
            wanted.append((self._lane((schedule.stages - 1, 0, "tied")), one.micro_batch))
        return wanted

    def _results(self, worker: int, one: Pass) -> list[Unsent]:
        schedule, stage = self._schedule, self._stage(one)
        results = []
        to = schedule.successor(one)
        if to is not None and self._owners[self._stage(to)] != worker:
            limit = self._credits.gradients if one.is_backward else self._credits.activations
            results.append(Unsent((stage, self._stage(to), kind(one)), limit, to))
        if one.is_backward and one.range_index == schedule.ranges - 1 and self._owners[0] != worker:
            results.append(Unsent((stage, 0, "tied"), self._credits.tied, one.micro_batch))
        return results


def kind(one: Pass) -> str:
    return "gradient" if one.is_backward else "activation"


@given(
    st.sampled_from([("gpipe", False), ("1f1b", False), ("1f1b", True), ("interleaved_1f1b", False)]),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(2, 3),
    st.integers(),
)
@settings(max_examples=150, deadline=None)
def test_every_schedule_ends_whatever_the_delays_and_the_workers(
    chosen: tuple[ScheduleKind, bool], borders: list[bool], micro_batches: int, turns: int, seed: int
) -> None:
    name, hides_transfers = chosen
    owners = list(accumulate(borders, initial=0))
    stages = len(owners)
    ranges = turns if name == "interleaved_1f1b" else 1
    schedule = Schedule(name, stages, micro_batches, ranges, hides_transfers)
    credits = Credits.choose(name, stages, shares_workers=not all(borders))
    assert Row(schedule, owners, credits).ends(Random(seed))


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_interleaving_needs_a_credit_per_stage_for_tied_parts(stages: int) -> None:
    schedule, owners = Schedule("interleaved_1f1b", stages, 2 * stages, 2), list(range(stages))
    chosen = Credits.choose("interleaved_1f1b", stages, shares_workers=False)
    assert chosen.tied == stages
    for tied in range(1, stages):
        assert not Row(schedule, owners, Credits(2, 2, tied)).ends(Random(0))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_least_credits_suffice_for_tied_parts_elsewhere(name: ScheduleKind) -> None:
    assert Row(Schedule(name, 4, 12), [0, 1, 2, 3], ONE_EACH).ends(Random(0))


def test_least_credits_deadlock_interleaving_where_workers_have_several_stages() -> None:
    schedule = Schedule("interleaved_1f1b", 4, 8, 2)
    assert not Row(schedule, [0, 0, 1, 1], Credits(1, 1, 100)).ends(Random(0))
