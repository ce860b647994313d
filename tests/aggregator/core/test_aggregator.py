"""Dialogues about connecting workers and the queue. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

# ---- who is let in ----


def test_a_second_worker_of_one_name_is_refused() -> None:
    dialogue = Dialogue()
    assert dialogue.hello(1, "box", incarnation="one") == ["1 <- welcome"]
    dialogue.now += 2.0
    (line,) = dialogue.hello(2, "box", incarnation="two")
    assert line.startswith("2 closed: ")
    assert has_facts(line, "box ... 12.5 s ... --name")
    dialogue.now += 2.0
    assert dialogue.hello(2, "box", incarnation="two") == [line], "which its log has once"
    dialogue.now += 20.0
    assert dialogue.hello(3, "box", incarnation="two")[-1] == "3 <- welcome", (
        "the first one is silent for long"
    )


def test_a_worker_that_comes_back_takes_the_place_of_its_old_connection() -> None:
    dialogue = training(1)
    assert dialogue.hello(2, "w1", incarnation="i1") == [
        "1 closed: replaced by a newer connection of the same worker",
        "2 <- welcome",
        "2 <- join",
    ]
    assert dialogue.chunk(1, 1, 0, 0) == [], "the old session is closed"


def test_a_silent_worker_is_taken_for_dead() -> None:
    dialogue = training(1, 2)
    dialogue.computed(1)
    assert dialogue.later(16.0, 1) == [
        "2 closed: silent for 16.0 s",
        "1 <- window 1",
        "1 <- train 2-3 of 1.0",
    ]


def test_a_dead_worker_is_seen_within_three_heartbeats() -> None:
    """Check a heartbeat of 5 s, with a tick every quarter of it and a worker that dies at 100 s."""
    dialogue = training(1, 2)
    while not any("2 closed" in line for line in dialogue.later(1.25, 1)):
        assert dialogue.now < 115.0
    assert 112.5 < dialogue.now < 115.0, "and not before it had time for five signs of life"


def test_messages_for_another_epoch_are_ignored() -> None:
    dialogue = training(1)
    computed = pb.Computed(job="a", lease=dialogue.leases[1], seconds=1.0)
    dialogue.says(1, computed, epoch=2)
    assert dialogue.run is not None and dialogue.run.lease_book.step_sum is not None
    assert dialogue.run.lease_book.step_sum.is_busy(1)


# ---- the queue ----


def test_each_stage_names_its_wait() -> None:
    dialogue = Dialogue()
    assert dialogue.describe_wait() == ""
    dialogue.submit()
    assert dialogue.describe_wait() == "waits for the optimizer: not connected yet"
    dialogue.optimizer()
    assert dialogue.describe_wait() == "waits for the optimizer's status"
    dialogue.stands(1, 0)
    assert dialogue.describe_wait() == "waits for a worker to connect"
    dialogue.hello(1)
    assert dialogue.describe_wait() == "waits for workers to build the job: w1 (connected)"
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1)
    assert dialogue.describe_wait() == "phase train, step 0; workers with its weights: 0 of 1"
    dialogue.give(ev.OptimizerLost("opt:1: refused"))
    assert dialogue.describe_wait() == "waits for the optimizer: opt:1: refused"


# ---- a check of meshes and links ----


def test_a_job_gets_no_worker_of_a_check_before_its_end() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.give(ev.ClusterCheckBegan((1,)))
    assert "optimizer <- Open" in dialogue.submit(), "it starts meanwhile"
    dialogue.later(1.25, 1)
    assert not dialogue.core.members[1].job
    dialogue.give(ev.Ticked())
    assert "the end of `tiermesh check --cluster`" in dialogue.core.runs["a"].job.waiting
    assert "2 <- join" in dialogue.hello(2), "others are free"
    assert "1 <- join" in dialogue.give(ev.ClusterCheckEnded())
