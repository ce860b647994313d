"""Dialogues about jobs that were paused or preempted, and stay open at the optimizer while there is room."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.core import events as ev
from aggregator.core.scheduling.host_memories import ToldMemory
from aggregator.core.scheduling.room import RoleNeed
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import PAUSED, QUEUED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training

GB = 1 << 30


def orders(dialogue: Dialogue, event: ev.Input) -> list[str]:
    """Give the core an input; return the orders to the optimizer, with their jobs."""
    effects = dialogue.core.handle(event, dialogue.clock)
    bodies: list[Any] = [each.body for each in effects if isinstance(each, ev.ToOptimizer)]
    return [f"{type(each).__name__} {each.job}" for each in bodies]


def ticks(dialogue: Dialogue) -> list[str]:
    """Let time pass until the next tick; return the orders to the optimizer."""
    dialogue.now += 1.25
    return orders(dialogue, ev.Ticked())


def suspended(jobs: str, *, memory: int = 0, **limits: Any) -> Dialogue:
    """Return a cluster without workers in which each of these jobs has run for a moment, and is paused.

    Args:
        jobs: ids of the jobs, of one letter each. Each needs 30 GB at the optimizer.
        memory: memory of the optimizer's host in GB; 0 if it is not known.
        limits: limits of the aggregator.
    """
    dialogue = Dialogue(**limits)
    if memory:
        dialogue.give(ev.MemoryTold("optimizer", "opt", ToldMemory("h1", memory * GB, memory * GB)))
    dialogue.optimizer()
    for job in jobs:
        dialogue.submit(job, needs={"optimizer": RoleNeed(30 * GB)}, max_workers=1)
        dialogue.stands(1, 2, job=job)
        assert dialogue.pause(job) == [f"save {job} paused", "optimizer <- SaveCheckpoint", "drop all"]
    assert dialogue.core.jobs.suspended == set(jobs)
    return dialogue


def test_a_paused_job_stays_open_and_goes_on_without_being_loaded() -> None:
    dialogue = training(1)
    dialogue.pause()
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    lines = dialogue.commits(1, 0)
    assert "optimizer <- SaveCheckpoint" in lines and "optimizer <- Close" not in lines
    assert dialogue.checkpoint(1, 1) == ["save a paused"], "so that a pause of weeks is safe"
    assert dialogue.resume() == ["save a running", "optimizer <- Open", "1 <- join"]
    assert not dialogue.core.jobs.suspended
    dialogue.ready(1, holds=(1, 1))
    assert "1 <- train 0-3 of 1.1" in dialogue.stands(1, 1)
    assert (dialogue.job().step, dialogue.job().generation) == (1, 1), "a load would raise the generation"


def test_a_preempted_job_stays_open_too() -> None:
    dialogue = training(1)
    dialogue.submit("b", priority=5)
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    dialogue.commits(1, 0)
    assert dialogue.job().state == QUEUED and dialogue.core.jobs.suspended == {"a"}
    assert ticks(dialogue) == []
    assert orders(dialogue, ev.CancelRequested("b")) == ["Close b", "Open a"]
    assert dialogue.job().state == RUNNING and not dialogue.core.jobs.suspended


def test_a_job_that_starts_has_jobs_closed_whose_memory_it_needs_the_last_one_first() -> None:
    dialogue = suspended("abc", memory=100)
    dialogue.give(ev.PriorityRequested("c", 3))
    dialogue.submit("d", needs={"optimizer": RoleNeed(40 * GB)})
    assert list(dialogue.core.runs) == ["d"], "it does not wait for them"
    assert dialogue.core.jobs.suspended == {"a", "c"}, "c has a higher priority, and a is older"
    dialogue.cancel("d")
    assert dialogue.resume("b") == ["save b running", "optimizer <- Open"], "it is loaded"


def test_it_is_closed_before_the_other_one_is_opened() -> None:
    dialogue = suspended("a", memory=50)
    lines = dialogue.submit("b", needs={"optimizer": RoleNeed(40 * GB)})
    assert lines == ["optimizer <- Close", "save b running", "optimizer <- Open"]


def test_jobs_in_the_queue_stay_open_rather_than_paused_ones() -> None:
    dialogue = suspended("ab")
    dialogue.job("b").state = QUEUED
    assert dialogue.core.jobs.rank_suspended() == ["b", "a"]


def test_no_more_jobs_are_open_than_may_run() -> None:
    dialogue = suspended("ab", max_running_jobs=2)
    dialogue.submit("c", max_workers=1)
    assert list(dialogue.core.runs) == ["c"] and dialogue.core.jobs.suspended == {"a"}
    for session in (1, 2):
        dialogue.hello(session)
    dialogue.resume("b")
    assert list(dialogue.core.runs) == ["c", "b"] and not dialogue.core.jobs.suspended


def test_a_job_with_room_starts_beside_them() -> None:
    dialogue = suspended("ab", memory=100)
    assert dialogue.submit("c", needs={"optimizer": RoleNeed(40 * GB)})[-1] == "optimizer <- Open"
    assert dialogue.core.jobs.suspended == {"a", "b"}


@pytest.mark.parametrize("now", [False, True])
def test_one_that_is_cancelled_is_closed(now: bool) -> None:
    dialogue = suspended("a")
    effects = dialogue.core.handle(ev.CancelRequested("a", now), dialogue.clock)
    assert ev.ToOptimizer(pb.Close(job="a", checkpoint=not now)) in effects
    assert not dialogue.core.jobs.suspended


def test_one_that_fails_at_the_optimizer_is_closed_and_loaded_when_it_runs_again() -> None:
    dialogue = suspended("a")
    failure = ev.FromOptimizer(pb.Failure(job="a", reason="disk full (checkpoint.on_error: stop)"))
    assert orders(dialogue, failure) == ["Close a"]
    assert dialogue.job().state == PAUSED
    assert orders(dialogue, failure) == [], "once"


def test_an_aggregator_that_starts_goes_on_with_what_is_open() -> None:
    before = suspended("ab", max_running_jobs=2)
    records = [before.core.jobs.records[job] for job in "ab"]
    dialogue = Dialogue(epoch=4, records=records, max_running_jobs=2)
    dialogue.optimizer()
    for job in "ab":
        assert dialogue.stands(1, 2, job=job) == []
    assert dialogue.stands(1, 2, job="c") == ["optimizer <- Close"], "it has ended"
    assert dialogue.core.jobs.suspended == {"a", "b"}
    assert dialogue.resume() == ["save a running", "optimizer <- Open"]


def test_what_is_open_when_the_optimizer_connects_counts_once() -> None:
    before = suspended("a", memory=100)
    dialogue = Dialogue(epoch=4, records=[before.core.jobs.records["a"]])
    dialogue.give(ev.MemoryTold("optimizer", "opt", ToldMemory("h1", 100 * GB, 70 * GB)))
    dialogue.optimizer()
    dialogue.stands(1, 2)
    for session in (1, 2):
        dialogue.hello(session)
    dialogue.submit("b", needs={"optimizer": RoleNeed(70 * GB)}, max_workers=1)
    assert list(dialogue.core.runs) == ["b"] and dialogue.core.jobs.suspended == {"a"}
    dialogue.submit("c", needs={"optimizer": RoleNeed(30 * GB)}, max_workers=1)
    assert list(dialogue.core.runs) == ["b", "c"] and not dialogue.core.jobs.suspended


def test_an_optimizer_that_starts_has_nothing_open() -> None:
    dialogue = suspended("a")
    dialogue.give(ev.OptimizerLost("killed"))
    assert not dialogue.core.jobs.suspended
    dialogue.optimizer()
    assert orders(dialogue, ev.CancelRequested("a")) == []


def test_a_link_that_broke_changes_nothing() -> None:
    dialogue = suspended("ab")
    dialogue.give(ev.OptimizerLost("link broken"))
    dialogue.cancel("b")
    dialogue.submit("c")
    dialogue.pause("c")
    dialogue.optimizer()
    assert dialogue.stands(1, 2) == []
    assert dialogue.stands(1, 2, job="b") == ["optimizer <- Close"], "that order got lost"
    assert dialogue.core.jobs.suspended == {"a"}, "c was never opened"
