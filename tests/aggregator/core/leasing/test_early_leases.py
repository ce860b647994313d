"""Tests of early leases: workers that had all older weights get leases while the new weights are still being sent."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training


def committed(*workers: int, chunks: int = 2) -> Dialogue:
    """Return a cluster whose step 0 is committed and whose new weights have not arrived yet."""
    dialogue = training(*workers, chunks=chunks)
    for session in workers:
        dialogue.computed(session)
    dialogue.commits(1, 0)
    return dialogue


def test_a_newcomer_is_leased_work_when_it_holds_all_weights() -> None:
    dialogue = training(1, chunks=2)
    dialogue.joins(2)
    assert dialogue.commits(1, 0) == ["drop all", "1 <- window 2", "1 <- train 0-3 of 1.1"]
    dialogue.weights(1, 1, 0, 1)
    dialogue.sent_weights(2)
    assert dialogue.give(ev.WorkerLost(1, "gone")) == []
    assert dialogue.sent_weights(2) == "1.1"
    assert dialogue.weights_loaded(2, 1, 1) == [
        "save a running",  # that its work is not checked from this step on
        "2 <- window 2",
        "2 <- train 0-3 of 1.1",
    ]


def test_nodes_of_a_lost_worker_go_to_workers_with_all_weights() -> None:
    dialogue = committed(1, 2)
    dialogue.weights(1, 1, 0)
    assert dialogue.give(ev.WorkerLost(1, "gone")) == [], "no idle worker has all weights"
    dialogue.weights(1, 1, 1)
    assert dialogue.weights_loaded(2, 1, 1) == [], "it has work of its own to do first"
    assert dialogue.computed(2) == ["2 <- window 2", "2 <- train 0-1 of 1.1"]


def test_a_worker_that_gets_its_weights_too_slowly_stalls() -> None:
    dialogue = committed(1, 2)
    dialogue.weights(1, 1, 0, 1)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.computed(1)
    assert dialogue.later(STANDARD_TIMEOUTS.stall - 1, 1, 2) == []
    assert dialogue.later(2.0, 1, 2) == ["2 <- revoke", "1 <- window 2", "1 <- train 2-3 of 1.1"]
    dialogue.weights_loaded(2, 1, 1)
    assert dialogue.status().workers[1].state == "ready", "it reported work again"


def test_no_lease_is_revoked_while_all_wait_for_weights() -> None:
    dialogue = committed(1, 2)
    assert dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], "the optimizer may be away for long"


def test_a_version_is_overtaken_by_another_generation() -> None:
    dialogue = committed(1, 2)
    dialogue.weights(1, 1, 0)
    former = dict(dialogue.leases)
    dialogue.optimizer()
    assert dialogue.stands(2, 0)[-4:] == [
        "1 <- window 2",
        "1 <- train 0-1 of 2.0",
        "2 <- window 2",
        "2 <- train 2-3 of 2.0",
    ]
    assert dialogue.chunk(1, 1, 1, 1, lease=former[1]) == [], "of the generation before"


def test_after_an_evaluation_a_worker_that_is_still_sent_weights_is_leased_work_too() -> None:
    dialogue = training(1, 2, step=1, evaluate_every=2, chunks=2)
    dialogue.commits(1, 1)
    dialogue.weights(1, 2, 0, 1)
    assert dialogue.weights_loaded(1, 1, 2) == ["1 <- evaluate 0 of 1.2"], (
        "batches are evaluated by those that hold all"
    )
    dialogue.evaluated(1, 1, 2, (0, 1.0))
    dialogue.evaluated(1, 1, 2, (1, 1.0))
    assert dialogue.evaluated(1, 1, 2, (2, 1.0))[1:] == [
        "1 <- window 2",
        "1 <- train 0-1 of 1.2",
        "2 <- window 2",
        "2 <- train 2-3 of 1.2",
    ]


def test_workers_without_work_get_the_weights_last() -> None:
    dialogue = training(1, 2, micro_batches=1)
    dialogue.computed(1)
    dialogue.commits(1, 0)
    assert (dialogue.sent_weights(1), dialogue.sent_weights(2)) == ("1.1", "")
    assert dialogue.weights_loaded(1, 1, 1) == []
    assert (dialogue.sent_weights(1), dialogue.sent_weights(2)) == ("", "1.1")


def test_workers_without_work_wait_no_longer_than_a_silent_worker_may() -> None:
    dialogue = training(1, 2, micro_batches=1)
    dialogue.computed(1)
    dialogue.commits(1, 0)
    dialogue.goes_by(STANDARD_TIMEOUTS.silent - 1, 1, 2)
    assert not dialogue.sent_weights(2)
    dialogue.goes_by(2, 1, 2)
    assert dialogue.sent_weights(2) == "1.1", "the one that computes is slow to load them"


def test_workers_that_may_check_a_step_get_its_weights_at_once() -> None:
    dialogue = training(1, 2, micro_batches=1, verify_fraction=1.0)
    dialogue.commits(1, 0)
    assert (dialogue.sent_weights(1), dialogue.sent_weights(2)) == ("1.1", "1.1")


def test_all_workers_get_the_weights_that_are_evaluated_at_once() -> None:
    dialogue = training(1, 2, micro_batches=1, evaluate_every=1)
    dialogue.commits(1, 0)
    assert (dialogue.sent_weights(1), dialogue.sent_weights(2)) == ("1.1", "1.1")


def test_a_plane_without_tensors_is_told_of_each_job_once_and_of_its_end() -> None:
    dialogue = training(1)
    passed = list(dialogue.passed)
    assert [(each.job, each.elements) for each in passed] == [("a", dialogue.layout.elements)]
    dialogue.commits(1, 0)
    assert dialogue.passed == passed
    dialogue.cancel()
    assert dialogue.passed[1:] == [plane.PassJob(job="a")]


def started(*workers: int, **plan: int) -> Dialogue:
    """Return a job with initial weights, which no worker has yet; these workers have built it."""
    dialogue = Dialogue()
    dialogue.submit(**plan)
    dialogue.optimizer()
    for session in workers:
        dialogue.joins(session)
    dialogue.stands(1, 0)
    dialogue.weights(1, 0, 0)
    return dialogue


def test_the_first_worker_with_initial_weights_leaves_others_their_part_of_the_step() -> None:
    dialogue = started(1, 2)
    assert dialogue.weights_loaded(1, 1, 0)[-1] == "1 <- train 0-1 of 1.0"
    assert dialogue.weights_loaded(2, 1, 0)[-1] == "2 <- train 2-3 of 1.0"


def test_workers_that_still_build_the_job_are_left_their_part_until_another_is_done_with_its_own() -> None:
    dialogue = started(1)
    dialogue.hello(2)
    dialogue.give(ev.DataStreamOpened(2))
    assert dialogue.weights_loaded(1, 1, 0)[-1] == "1 <- train 0-1 of 1.0"
    assert dialogue.computed(1)[-1] == "1 <- train 2-3 of 1.0"


def test_a_step_that_is_too_small_for_all_waits_for_nobody() -> None:
    dialogue = started(1, 2, micro_batches=1)
    assert dialogue.weights_loaded(2, 1, 0)[-1] == "2 <- train 0 of 1.0"


def test_workers_that_can_not_build_the_job_are_left_no_part_of_the_step() -> None:
    dialogue = started(1)
    dialogue.hello(2)
    dialogue.give(ev.DataStreamOpened(2))
    dialogue.says(2, pb.Failure(job="a", reason="no mesh"))
    assert dialogue.weights_loaded(1, 1, 0)[-1] == "1 <- train 0-3 of 1.0"
