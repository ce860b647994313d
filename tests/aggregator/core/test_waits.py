"""Dialogues about the waits of a job."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Wait
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, layout_ref, training
from tests.support.facts import has_facts


def owed(dialogue: Dialogue) -> list[Wait]:
    return list(dialogue.status().waits)


def test_workers_that_owe_the_next_chunk_are_named_with_step_and_time() -> None:
    dialogue = training(1, 2, chunks=2)
    dialogue.later(3.0, 1, 2)
    mine = Wait(
        role="worker", peer="w1", job="a", bucket=1, what="gradients of micro-batches 0-1", seconds=3.0
    )
    other = Wait(
        role="worker", peer="w2", job="a", bucket=1, what="gradients of micro-batches 2-3", seconds=3.0
    )
    assert owed(dialogue) == [mine, other]
    dialogue.chunk(1, 1, 0, 1)
    assert owed(dialogue) == [other], "the first one has sent its part of the bucket"
    dialogue.chunk(2, 1, 0, 1)
    assert [(wait.peer, wait.bucket) for wait in owed(dialogue)] == [("w1", 0), ("w2", 0)]
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 0)
    assert owed(dialogue) == [], "workers owe nothing more"
    dialogue.later(0.5, 1, 2)
    dialogue.later(2.0, 1, 2)
    mine = Wait(role="optimizer", peer="opt", job="a", what="the update", seconds=2.0)
    assert owed(dialogue) == [mine], "since the first look at it"
    dialogue.commits(1, 0)
    assert [(wait.role, wait.step) for wait in owed(dialogue)] == [("worker", 1), ("worker", 1)]


def test_the_worker_that_makes_initial_weights_is_named() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    dialogue.later(2.0, 1)
    assert owed(dialogue) == [Wait(role="worker", peer="w1", job="a", what="initial weights", seconds=2.0)]


def test_what_the_optimizer_owes_the_initial_weights_is_not_asked_of_the_worker() -> None:
    dialogue = Dialogue(chunks=2)
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.joins(2)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    described = pb.Description(job="a", lease=dialogue.leases[1], layout=layout_ref(dialogue.layout))
    assert dialogue.says(1, described) == ["optimizer <- Initialise"]

    def waits_long(what: str) -> None:
        for _ in range(2):  # far longer than a worker may take
            assert dialogue.later(STANDARD_TIMEOUTS.stall, 1, 2) == []
        (wait,) = owed(dialogue)
        assert (wait.role, wait.peer, wait.what) == ("optimizer", "opt", what)

    waits_long("the allocation of the job")
    dialogue.give(ev.FromOptimizer(pb.CheckpointMissed(job="a", reason="no room for 9 bytes")))
    waits_long("disk space for the job's spec and layout")
    assert has_facts(dialogue.describe_wait(), "optimizer ... disk space ... no room for 9 bytes")
    dialogue.stands(1, 0, state=pb.OptimizerStatus.RECEIVING)
    assert dialogue.job().detail == ""
    for chunk in range(2):
        (wait,) = owed(dialogue)
        assert (wait.peer, wait.what, wait.HasField("bucket"), wait.bucket) == (
            "w1",
            "initial weights",
            True,
            chunk,
        )
        dialogue.initial(1, chunk)
    waits_long("the first checkpoint")


def test_a_resumed_job_without_space_names_no_step() -> None:
    dialogue = training(1, step=2)
    dialogue.give(ev.OptimizerLost("gone"))
    dialogue.optimizer()
    dialogue.give(ev.FromOptimizer(pb.CheckpointMissed(job="a", reason="disk full; the job begins later")))
    assert dialogue.job().detail == "optimizer: disk full; the job begins later"
    dialogue.later(0.0, 1)
    assert ("optimizer", "disk space for the job's spec and layout") in [
        (each.role, each.what) for each in owed(dialogue)
    ]
    dialogue.give(ev.FromOptimizer(pb.CheckpointMissed(job="a", generation=1, step=2, reason="disk full")))
    assert dialogue.job().detail == "no checkpoint of step 2: disk full"


def test_the_worker_that_evaluates_is_named() -> None:
    dialogue = training(1, step=4)
    dialogue.later(2.0, 1)
    assert owed(dialogue) == [
        Wait(role="worker", peer="w1", job="a", step=4, what="losses of batch 0", seconds=2.0)
    ]


def test_each_step_waits_for_its_own_update() -> None:
    """Check that waits restart with each step, even if the optimizer owes the same at every tick."""
    dialogue = training(1)
    for step in range(3):
        dialogue.chunk(1, 1, step, 0)
        for _ in range(2):
            dialogue.later(1.0, 1)
        assert [(wait.step, wait.what, wait.seconds) for wait in owed(dialogue)] == [
            (step, "the update", 1.0)
        ]
        dialogue.commits(1, step)
        dialogue.weights(1, step + 1, 0)
        dialogue.weights_loaded(1, 1, step + 1)


def test_an_optimizer_that_is_not_there_or_does_not_answer_is_named() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.later(0.0)
    dialogue.later(2.0)
    assert owed(dialogue) == [
        Wait(role="optimizer", peer="optimizer", job="a", what="a connection: not connected yet", seconds=2.0)
    ]
    dialogue.optimizer()
    assert owed(dialogue) == [], "the earlier debt is paid"
    dialogue.later(0.0)
    dialogue.later(3.0)
    assert owed(dialogue) == [Wait(role="optimizer", peer="opt", job="a", what="its status", seconds=3.0)]


def test_an_optimizer_that_has_not_sent_all_weights_is_named() -> None:
    dialogue = Dialogue(chunks=2)
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.stands(1, 0)
    for chunk in (0, 1):
        dialogue.later(0.0, 1)
        assert ("optimizer", "opt", "the weights") in [
            (each.role, each.peer, each.what) for each in owed(dialogue)
        ]
        dialogue.weights(1, 0, chunk)
    dialogue.later(0.0, 1)
    assert "optimizer" not in [each.role for each in owed(dialogue)]


def test_an_optimizer_that_writes_the_last_checkpoint_is_named() -> None:
    dialogue = training(1, step=4)
    for batch in range(3):
        dialogue.evaluated(1, 1, 4, (batch, 1.0))
    dialogue.later(2.0, 1)
    (wait,) = owed(dialogue)
    assert (wait.role, wait.peer, wait.what, wait.step) == ("optimizer", "opt", "the last checkpoint", 4)


def test_without_a_job_there_are_no_waits() -> None:
    assert owed(Dialogue()) == []
