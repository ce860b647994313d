"""Dialogues about a job's versions and phases. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, SUCCEEDED
from services.protocol.plan import WINDOW_CHUNKS
from tests.support.dialogues.aggregator import Dialogue, training


def test_weights_that_come_before_their_commit_imply_it() -> None:
    dialogue = training(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    assert dialogue.weights(1, 1, 0) == [
        "drop all",
        "1 <- window 1",
        "1 <- train 0-3 of 1.1",
        "store weights #0",
    ]
    assert dialogue.commits(1, 0) == [], "the step is known already, and only published now"
    assert dialogue.weights(1, 0, 0) == [], "an older version"
    assert dialogue.weights(1, 1, 0) == [], "repeated"


def test_commits_that_two_steps_have_overtaken_are_published_with_their_losses_once() -> None:
    dialogue = training(1)
    for step, loss in enumerate((1.0, 2.0)):
        dialogue.chunk(1, 1, step, 0, losses=(loss,) * 4)
        dialogue.weights(1, step + 1, 0)
    before = len(dialogue.notes)
    for step in (0, 1, 0, 1):
        assert dialogue.commits(1, step) == []
    assert dialogue.notes[before:] == [
        "Step: 1, Loss: 1.0000000, Time: 0.00 ms",
        "Step: 2, Loss: 2.0000000, Time: 0.00 ms",
    ]


def test_an_optimizer_whose_layout_has_another_size_fails_the_job() -> None:
    dialogue = training(1)
    status = pb.OptimizerStatus(
        job="a",
        state=pb.OptimizerStatus.TRAINING,
        generation=1,
        layout_hash=dialogue.layout.hash,
        elements=1 << 32,
    )
    dialogue.give(ev.FromOptimizer(status))
    assert dialogue.job().state == FAILED
    assert dialogue.job().detail.startswith("the optimizer has 4294967296 elements, expected ")


def test_sums_that_were_lost_with_the_link_are_asked_for_again() -> None:
    dialogue = training(1, 2, chunks=2)
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 1)
        dialogue.chunk(session, 1, 0, 0)
    dialogue.give(ev.OptimizerLost("broke"))
    assert dialogue.optimizer() == ["optimizer <- Open"]
    assert dialogue.stands(1, 0, missing=[0]) == [
        "1 <- resend #0",
        "2 <- resend #0",
        "optimizer <- SendWeights 1.1",
    ], "it holds all weights of 1.0 and waits for the next"
    assert dialogue.chunk(1, 1, 0, 0) == ["keep 0-1 #0"]
    assert dialogue.chunk(2, 1, 0, 0) == ["keep 2-3 #0", "merge 0-1 + 2-3 #0", "forward #0"]


def test_the_window_restarts_when_sums_were_lost_with_the_link() -> None:
    chunks = 3 * WINDOW_CHUNKS
    dialogue = training(1, 2, chunks=chunks)
    for chunk in reversed(range(WINDOW_CHUNKS, chunks)):
        for session in (1, 2):
            dialogue.chunk(session, 1, 0, chunk)
    dialogue.give(ev.OptimizerLost("broke"))
    dialogue.optimizer()
    orders = dialogue.stands(1, 0, missing=range(chunks))
    assert orders[:2] == [f"1 <- window {WINDOW_CHUNKS}", f"2 <- window {WINDOW_CHUNKS}"], (
        "before anything is sent"
    )
    assert orders[2].startswith("1 <- resend ") and orders[3].startswith("2 <- resend ")


def test_a_commit_that_was_lost_with_the_link() -> None:
    dialogue = training(1)
    dialogue.chunk(1, 1, 0, 0, losses=(2.0, 2.0, 2.0, 2.0))
    dialogue.optimizer()
    assert dialogue.stands(1, 1) == [
        "drop all",
        "optimizer <- SendWeights 1.1",
        "1 <- window 1",
        "1 <- train 0-3 of 1.1",
    ]
    assert (dialogue.job().step, dialogue.job().loss) == (1, 2.0)


def test_a_status_older_than_the_weights_is_stale() -> None:
    dialogue = training(1)
    dialogue.weights(1, 1, 0)
    assert dialogue.stands(1, 0) == []
    assert dialogue.job().step == 1


def test_the_optimizer_goes_back_to_a_checkpoint() -> None:
    dialogue = training(1, step=3, steps=9)
    dialogue.chunk(1, 1, 3, 0)
    dialogue.optimizer()
    assert dialogue.stands(2, 2) == [
        "save a running",
        "drop all",
        "optimizer <- SendWeights 2.2",
        "1 <- window 1",
        "1 <- train 0-3 of 2.2",
    ]
    assert dialogue.chunk(1, 1, 3, 0) == [], "of the generation before"
    assert dialogue.weights(1, 4, 0) == []
    assert dialogue.weights(2, 2, 0) == ["store weights #0"]
    assert dialogue.sent_weights(1) == "2.2"
    assert dialogue.weights_loaded(1, 2, 2) == []
    assert (dialogue.job().generation, dialogue.job().step) == (2, 2)


def test_a_new_aggregator_continues_what_the_optimizer_has() -> None:
    before = training(1, chunks=2, step=2)
    dialogue = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    assert dialogue.give(ev.Ticked()) == ["save a running"]
    assert dialogue.optimizer() == ["optimizer <- Open"]
    dialogue.joins(1, holds=(1, 2))
    assert dialogue.stands(1, 2, missing=[0]) == [
        "save a running",
        "drop all",
        "optimizer <- SendWeights 1.2",
        "1 <- window 2",
        "1 <- train 0-3 of 1.2 only #0",
    ]
    assert dialogue.leases[1] >> 32 == 4, "no lease of another epoch has its id"


def test_a_new_aggregators_window_starts_after_what_the_optimizer_has() -> None:
    before = training(1, chunks=20, step=2)
    dialogue = Dialogue(epoch=4, chunks=20, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 2))
    lines = dialogue.stands(1, 2, missing=[0, 1])
    assert lines[-2:] == ["1 <- window 20", "1 <- train 0-3 of 1.2 only #0 #1"]


def test_a_new_aggregator_does_not_compute_what_is_being_decided() -> None:
    before = training(1, step=2)
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 2))
    assert dialogue.stands(1, 2, missing=[]) == ["save a running", "drop all", "optimizer <- SendWeights 1.2"]
    dialogue.job().starts = 0  # which would be saved
    assert dialogue.commits(1, 2) == ["drop all", "1 <- window 1", "1 <- train 0-3 of 1.3"]
    assert dialogue.job().step == 3 and not dialogue.job().HasField("loss"), "this aggregator did not see it"


def test_a_commit_counts_while_an_evaluation_runs() -> None:
    dialogue = training(1, step=2, evaluate_every=2)
    assert dialogue.job().phase == "evaluate"
    assert dialogue.commits(1, 2)[0] == "drop all", "decided under an aggregator that had evaluated"
    assert (dialogue.job().phase, dialogue.job().step) == ("train", 3)


def test_an_evaluation_is_shared_and_its_loss_published() -> None:
    dialogue = training(1, 2, step=2, evaluate_every=2)
    assert dialogue.weights_loaded(1, 1, 2) == []
    run = dialogue.run
    assert run is not None
    assert [run.lease_book.is_computing(each) for each in dialogue.core.members.values()] == [True, True]
    assert dialogue.evaluated(1, 1, 2, (0, 1.0)) == ["1 <- evaluate 2 of 1.2"]
    assert dialogue.evaluated(2, 1, 2, (1, 2.0)) == []
    assert dialogue.evaluated(1, 1, 2, (2, 6.0))[0] == "save a running"
    assert (dialogue.job().validation_loss, dialogue.job().validation_step) == (3.0, 2)
    assert dialogue.job().phase == "train"


def test_an_evaluation_is_not_made_twice_after_a_restart() -> None:
    before = training(1, step=2, evaluate_every=2)
    for index in range(3):
        before.evaluated(1, 1, 2, (index, 1.0))
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 2))
    assert dialogue.stands(1, 2)[-1] == "1 <- train 0-3 of 1.2"


def test_the_job_succeeds_with_its_last_checkpoint() -> None:
    dialogue = training(1, step=4)
    assert dialogue.job().phase == "evaluate"
    assert dialogue.checkpoint(1, 4) == ["save a running"], "not evaluated yet"
    for index in range(3):
        lines = dialogue.evaluated(1, 1, 4, (index, 1.0))
    assert lines == [
        "save a running",
        "save a succeeded",
        "1 <- leave: finished 4 steps",
        "optimizer <- Close",
        "drop all",
    ]
    assert (dialogue.job().state, dialogue.job().model_sha256) == (SUCCEEDED, "sha4")
    assert dialogue.job().ended_seconds
