"""Dialogues about a job, from its start to its end. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import SUCCEEDED
from protos.tensors_pb2 import GRADIENT, ChunkHeader, NonFinite
from services.protocol.plan import WINDOW_CHUNKS
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training

# ---- the making of the initial weights ----


def test_a_job_from_nothing_to_its_first_step() -> None:
    talk = Dialogue(chunks=2)
    assert talk.submit() == ["save a queued", "save a running"]
    assert talk.optimizer() == ["optimizer <- Open"]
    assert talk.hello(1) == ["1 <- welcome", "1 <- join"]
    assert talk.stands(1, 0, state=pb.OptimizerStatus.EMPTY) == ["drop all"]
    assert talk.give(ev.DataStreamOpened(1)) == []
    assert talk.ready(1) == ["save a running", "1 <- initialise"]
    description = pb.Description(job="a", lease=talk.leases[1], layout_json=talk.layout.dumps())
    assert talk.says(1, description) == ["optimizer <- Initialise"]
    assert talk.stands(1, 0, state=pb.OptimizerStatus.RECEIVING) == ["drop all", "1 <- resend #0 #1"]
    assert talk.initial(1, 0) == ["keep 0 #0", "forward #0"]
    assert talk.initial(1, 1) == ["keep 0 #1", "forward #1"]
    assert talk.stands(1, 0) == ["save a running", "drop all", "optimizer <- SendWeights 1.0"]
    assert talk.weights(1, 0, 0) == ["store weights #0"]
    assert talk.sent_weights(1) == ["1.0 #0"]
    assert talk.weights(1, 0, 1) == ["store weights #1"]
    assert talk.sent_weights(1) == ["1.0 #1"]
    assert talk.weights_loaded(1, 1, 0) == ["1 <- window 2", "1 <- train 0-3 of 1.0"]


def test_the_worker_that_initialises_is_lost() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.joins(2)
    assert talk.stands(1, 0, state=pb.OptimizerStatus.EMPTY) == ["drop all", "1 <- initialise"]
    assert talk.give(ev.WorkerLost(1, "gone")) == ["2 <- initialise"]
    assert talk.says(1, pb.Description(job="a", lease=talk.leases[1])) == []


def test_an_optimizer_that_lost_everything_has_the_weights_made_again() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    assert talk.stands(2, 0, state=pb.OptimizerStatus.EMPTY) == ["drop all", "1 <- revoke", "1 <- initialise"]


def test_the_worker_that_initialises_stalls() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.joins(2)
    talk.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    assert talk.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == ["1 <- revoke", "2 <- initialise"]


# ---- a step ----


def test_a_step_of_two_workers() -> None:
    talk = training(1, 2)
    assert talk.chunk(2, 1, 0, 0, losses=(3.0, 5.0)) == ["keep 2-3 #0"]
    assert talk.chunk(1, 1, 0, 0, losses=(1.0, 3.0)) == ["keep 0-1 #0", "merge 0-1 + 2-3 #0", "forward #0"]
    assert talk.commits(1, 0) == [
        "drop all",
        "1 <- window 1",
        "1 <- train 0-1 of 1.1",
        "2 <- window 1",
        "2 <- train 2-3 of 1.1",
    ], "they begin with the first of the weights"
    assert (talk.job().step, talk.job().loss) == (1, 3.0)
    assert talk.weights(1, 1, 0) == ["store weights #0"]
    assert talk.sent_weights(1) == talk.sent_weights(2) == ["1.1 #0"]
    assert talk.weights_loaded(2, 1, 1) == talk.weights_loaded(1, 1, 1) == []


def test_stale_and_repeated_chunks_change_nothing() -> None:
    talk = training(1, 2)
    old = talk.leases[1]
    assert talk.chunk(1, 1, 0, 0) == ["keep 0-1 #0"]
    assert talk.chunk(1, 1, 0, 0) == [], "repeated"
    assert talk.chunk(1, 0, 0, 0) == [], "another generation"
    assert talk.chunk(1, 1, 3, 0) == [], "another step"
    assert talk.chunk(1, 1, 0, 0, lease=999) == [], "no such lease"
    assert talk.chunk(2, 1, 0, 0, lease=old) == [], "another worker's lease"
    assert talk.chunk(2, 1, 0, 0) == ["keep 2-3 #0", "merge 0-1 + 2-3 #0", "forward #0"]
    assert talk.chunk(2, 1, 0, 0) == [], "passed on already"
    talk.commits(1, 0)
    assert talk.chunk(1, 1, 0, 0, lease=old) == [], "committed already"


def test_a_worker_dies_after_some_of_its_chunks() -> None:
    talk = training(1, 2, chunks=3)
    talk.chunk(1, 1, 0, 2)
    talk.computed(2)
    assert talk.give(ev.WorkerLost(1, "gone")) == ["2 <- window 3", "2 <- train 0-1 of 1.0 only #0 #1"]
    assert talk.chunk(2, 1, 0, 1) == ["keep 0-1 #1"]


def test_a_busy_worker_gets_what_was_left_when_it_is_done() -> None:
    talk = training(1, 2)
    assert talk.give(ev.WorkerLost(1, "gone")) == []
    assert talk.computed(2) == ["2 <- window 1", "2 <- train 0-1 of 1.0"]


def test_what_a_lost_worker_had_is_shared_with_those_that_are_soon_done() -> None:
    talk = training(1, 2, 3, micro_batches=12)
    talk.now += 4.0
    assert talk.computed(1, seconds=4.0) == []
    assert talk.give(ev.WorkerLost(3, "gone")) == ["1 <- window 1", "1 <- train 8-9 of 1.0"]
    assert talk.computed(2, seconds=4.0) == ["2 <- window 1", "2 <- train 10-11 of 1.0"]


def test_orphans_are_not_kept_for_a_very_late_worker() -> None:
    talk = training(1, 2, 3, micro_batches=12)
    talk.now += 4.0
    talk.computed(1, seconds=4.0)
    talk.now += 20.0
    assert talk.give(ev.WorkerLost(3, "gone")) == ["1 <- window 1", "1 <- train 8-11 of 1.0"]


def test_orphans_kept_for_a_late_worker_go_to_an_idle_one() -> None:
    talk = training(1, 2, 3, micro_batches=12)
    talk.now += 4.0
    talk.computed(1, seconds=4.0)
    talk.give(ev.WorkerLost(3, "gone"))
    talk.now += 2.0
    assert talk.computed(1, seconds=2.0) == ["1 <- window 1", "1 <- train 10-11 of 1.0"]


def test_a_worker_that_stalls_is_relieved_by_an_idle_one_alone() -> None:
    talk = training(1, 2)
    assert talk.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], "no worker is idle"
    talk.computed(2)
    assert talk.later(1.0, 1, 2) == ["1 <- revoke", "2 <- window 1", "2 <- train 0-1 of 1.0"]
    assert talk.core.status(talk.now).workers[0].state == "stalled"
    talk.weights_loaded(1, 1, 0)
    assert talk.core.status(talk.now).workers[0].state == "ready", "it reported work again"


def test_the_window_moves_with_the_step() -> None:
    talk = training(1, chunks=20)
    lines = []
    for index in reversed(range(20)):
        lines += [line for line in talk.chunk(1, 1, 0, index) if "window" in line]
    assert lines == ["1 <- window 12", "1 <- window 16", "1 <- window 20"]


def test_chunks_that_are_read_in_the_workers_memory_need_no_window() -> None:
    talk = training(1, chunks=60)
    lines = []
    for index in reversed(range(60)):
        lines += [line for line in talk.chunk(1, 1, 0, index, in_place=True) if "window" in line]
    assert lines == ["1 <- window 60"], "sent with the first of them, and never again in this step"
    assert "1 <- window 60" in talk.commits(1, 0), "nor from then on"


def test_weights_that_come_before_their_commit_imply_it() -> None:
    talk = training(1)
    talk.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    assert talk.weights(1, 1, 0) == [
        "drop all",
        "1 <- window 1",
        "1 <- train 0-3 of 1.1",
        "store weights #0",
    ]
    assert talk.commits(1, 0) == [], "the step is known already, and only published now"
    assert talk.weights(1, 0, 0) == [], "an older version"
    assert talk.weights(1, 1, 0) == [], "repeated"


def test_a_gradient_that_is_not_finite_is_skipped_and_said_so() -> None:
    talk = training(1)
    talk.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    commit = pb.Commit(job="a", generation=1, step=0, applied=False)
    effects = talk.core.handle(ev.FromOptimizer(commit), talk.clock)
    assert [each.text for each in effects if isinstance(each, ev.Note)] == [
        "Step: 1, Loss: 1.0000000 (skipped: the gradient is not finite, though the gradients of all micro-batches are: "
        "their sum overflowed)"
    ]


@pytest.mark.parametrize("weights_first", [False, True])
def test_a_worker_with_a_gradient_that_is_not_finite_is_named(weights_first: bool) -> None:
    talk = training(1, 2)
    found = NonFinite(micro_batch=3, parameter="w")
    talk.chunk(2, 1, 0, 0, losses=(1.0, 1.0), non_finite=[found])
    last = ChunkHeader(
        job="a", epoch=talk.core.epoch, generation=1, lease=talk.leases[1], kind=GRADIENT, losses=(1.0, 1.0)
    )
    effects = talk.core.handle(ev.ChunkArrived(1, last), talk.clock)
    (onward,) = [each.header for each in effects if isinstance(each, ev.Forward)]
    assert list(onward.non_finite) == [NonFinite(micro_batch=3, parameter="w", worker="w2")]
    if weights_first:
        talk.weights(1, 1, 0)
    commit = pb.Commit(job="a", generation=1, step=0, applied=False, non_finite=onward.non_finite)
    talk.give(ev.FromOptimizer(commit))
    why = "the gradient is not finite: worker w2, micro-batch 3, parameter w"
    assert talk.notes[-1] == f"Step: 1, Loss: 1.0000000 (skipped: {why})"
    assert talk.job().skipped == f"step 1: {why}"


# ---- the optimizer's link and lives ----


def test_sums_that_were_lost_with_the_link_are_asked_for_again() -> None:
    talk = training(1, 2, chunks=2)
    for session in (1, 2):
        talk.chunk(session, 1, 0, 1)
        talk.chunk(session, 1, 0, 0)
    talk.give(ev.OptimizerLost("broke"))
    assert talk.optimizer() == ["optimizer <- Open"]
    assert talk.stands(1, 0, missing=[0]) == [
        "1 <- resend #0",
        "2 <- resend #0",
        "optimizer <- SendWeights 1.1",
    ], "it holds all weights of 1.0 and waits for the next"
    assert talk.chunk(1, 1, 0, 0) == ["keep 0-1 #0"]
    assert talk.chunk(2, 1, 0, 0) == ["keep 2-3 #0", "merge 0-1 + 2-3 #0", "forward #0"]


def test_the_window_restarts_when_sums_were_lost_with_the_link() -> None:
    chunks = 3 * WINDOW_CHUNKS
    talk = training(1, 2, chunks=chunks)
    for chunk in reversed(range(WINDOW_CHUNKS, chunks)):
        for session in (1, 2):
            talk.chunk(session, 1, 0, chunk)
    talk.give(ev.OptimizerLost("broke"))
    talk.optimizer()
    told = talk.stands(1, 0, missing=range(chunks))
    assert told[:2] == [f"1 <- window {WINDOW_CHUNKS}", f"2 <- window {WINDOW_CHUNKS}"], (
        "before anything is sent"
    )
    assert told[2].startswith("1 <- resend ") and told[3].startswith("2 <- resend ")


def test_a_commit_that_was_lost_with_the_link() -> None:
    talk = training(1)
    talk.chunk(1, 1, 0, 0, losses=(2.0, 2.0, 2.0, 2.0))
    talk.optimizer()
    assert talk.stands(1, 1) == [
        "drop all",
        "optimizer <- SendWeights 1.1",
        "1 <- window 1",
        "1 <- train 0-3 of 1.1",
    ]
    assert (talk.job().step, talk.job().loss) == (1, 2.0)


def test_a_standing_that_its_weights_have_overtaken_is_stale() -> None:
    talk = training(1)
    talk.weights(1, 1, 0)
    assert talk.stands(1, 0) == []
    assert talk.job().step == 1


def test_the_optimizer_goes_back_to_a_checkpoint() -> None:
    talk = training(1, step=3, steps=9)
    talk.chunk(1, 1, 3, 0)
    talk.optimizer()
    assert talk.stands(2, 2) == [
        "save a running",
        "drop all",
        "optimizer <- SendWeights 2.2",
        "1 <- window 1",
        "1 <- train 0-3 of 2.2",
    ]
    assert talk.chunk(1, 1, 3, 0) == [], "of the generation before"
    assert talk.weights(1, 4, 0) == []
    assert talk.weights(2, 2, 0) == ["store weights #0"]
    assert talk.sent_weights(1) == ["2.2 #0"]
    assert talk.weights_loaded(1, 2, 2) == []
    assert (talk.job().generation, talk.job().step) == (2, 2)


def test_a_new_aggregator_continues_what_the_optimizer_has() -> None:
    before = training(1, chunks=2, step=2)
    talk = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    assert talk.give(ev.Ticked()) == ["save a running"]
    assert talk.optimizer() == ["optimizer <- Open"]
    talk.joins(1, holds=(1, 2))
    assert talk.stands(1, 2, missing=[0]) == [
        "save a running",
        "drop all",
        "optimizer <- SendWeights 1.2",
        "1 <- window 2",
        "1 <- train 0-3 of 1.2 only #0",
    ]
    assert talk.leases[1] >> 32 == 4, "no lease of another epoch has its id"


def test_a_new_aggregators_window_starts_after_what_the_optimizer_has() -> None:
    before = training(1, chunks=20, step=2)
    talk = Dialogue(epoch=4, chunks=20, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    talk.joins(1, holds=(1, 2))
    lines = talk.stands(1, 2, missing=[0, 1])
    assert lines[-2:] == ["1 <- window 20", "1 <- train 0-3 of 1.2 only #0 #1"]


def test_a_new_aggregator_does_not_compute_what_is_being_decided() -> None:
    before = training(1, step=2)
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    talk.joins(1, holds=(1, 2))
    assert talk.stands(1, 2, missing=[]) == ["save a running", "drop all", "optimizer <- SendWeights 1.2"]
    assert talk.commits(1, 2) == ["drop all", "1 <- window 1", "1 <- train 0-3 of 1.3"]
    assert talk.job().step == 3 and not talk.job().HasField("loss"), "this aggregator did not see it"


def test_a_commit_counts_while_an_evaluation_runs() -> None:
    talk = training(1, step=2, evaluate_every=2)
    assert talk.job().phase == "evaluate"
    assert talk.commits(1, 2)[0] == "drop all", "decided under an aggregator that had evaluated"
    assert (talk.job().phase, talk.job().step) == ("train", 3)


# ---- evaluation, checkpoints, the end ----


def test_an_evaluation_is_shared_and_its_loss_published() -> None:
    talk = training(1, 2, step=2, evaluate_every=2)
    assert talk.weights_loaded(1, 1, 2) == []
    run = talk.core.run
    assert run is not None
    assert [run.lease_book.is_computing(each) for each in talk.core.members.values()] == [True, True]
    assert talk.evaluated(1, 1, 2, (0, 1.0)) == ["1 <- evaluate 2 of 1.2"]
    assert talk.evaluated(2, 1, 2, (1, 2.0)) == []
    assert talk.evaluated(1, 1, 2, (2, 6.0))[0] == "save a running"
    assert (talk.job().validation_loss, talk.job().validation_step) == (3.0, 2)
    assert talk.job().phase == "train"


def test_an_evaluation_is_not_made_twice_after_a_restart() -> None:
    before = training(1, step=2, evaluate_every=2)
    for index in range(3):
        before.evaluated(1, 1, 2, (index, 1.0))
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    talk.joins(1, holds=(1, 2))
    assert talk.stands(1, 2)[-1] == "1 <- train 0-3 of 1.2"


def test_a_worker_dies_or_stalls_while_it_evaluates() -> None:
    talk = training(1, 2, step=2, evaluate_every=2)
    talk.evaluated(2, 1, 2, (1, 2.0))
    talk.evaluated(2, 1, 2, (2, 2.0))
    assert talk.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == ["1 <- revoke", "2 <- evaluate 0 of 1.2"]
    assert talk.give(ev.WorkerLost(2, "gone")) == ["1 <- evaluate 0 of 1.2"]


def test_the_job_succeeds_with_its_last_checkpoint() -> None:
    talk = training(1, step=4)
    assert talk.job().phase == "evaluate"
    assert talk.checkpoint(1, 4) == ["save a running"], "not evaluated yet"
    for index in range(3):
        lines = talk.evaluated(1, 1, 4, (index, 1.0))
    assert lines == [
        "save a running",
        "save a succeeded",
        "1 <- leave: finished 4 steps",
        "optimizer <- Close",
        "drop all",
    ]
    assert (talk.job().state, talk.job().model_sha256) == (SUCCEEDED, "sha4")
    assert talk.job().ended_seconds


def test_a_checkpoint_that_is_missed_is_said_until_there_is_one() -> None:
    talk = training(1, step=2)
    missed = pb.CheckpointMissed(job="a", generation=1, step=2, reason="disk full")
    assert talk.give(ev.FromOptimizer(missed)) == ["save a running"]
    assert talk.job().detail == "no checkpoint of step 2: disk full"
    assert talk.core.describe_wait(talk.now).endswith(
        "workers hold its weights; no checkpoint of step 2: disk full"
    )
    talk.checkpoint(1, 3)
    assert talk.job().detail == ""
    assert talk.core.describe_wait(talk.now).endswith("workers hold its weights")


def test_a_job_whose_last_checkpoint_is_being_written_waits_for_the_optimizer() -> None:
    talk = training(1, step=4)
    for index in range(3):
        talk.evaluated(1, 1, 4, (index, 1.0))
    assert talk.core.describe_wait(talk.now) == "the optimizer to write the checkpoint of step 4"


def test_an_optimizer_that_cannot_go_on_fails_the_job() -> None:
    talk = training(1)
    lines = talk.give(ev.FromOptimizer(pb.Failure(job="a", reason="disk full")))
    assert lines == [
        "save a failed",
        "1 <- leave: optimizer opt: disk full",
        "optimizer <- Close",
        "drop all",
    ]


def test_an_optimizer_whose_layout_is_damaged_fails_the_job() -> None:
    talk = training(1)
    body = pb.OptimizerStatus(
        job="a", state=pb.OptimizerStatus.TRAINING, generation=2, step=1, layout_json="[5]"
    )
    lines = talk.give(ev.FromOptimizer(body))
    assert lines[0] == "save a failed"
    assert "the optimizer's layout entry 0: expected an object" in lines[1]


def test_a_stall_is_relative_to_the_measured_speed() -> None:
    """Check that a worker that needs 200 s for each of 4 micro-batches has not stalled after 600 s."""
    talk = training(1)
    talk.computed(1, seconds=800.0)
    talk.chunk(1, 1, 0, 0)
    talk.commits(1, 0)
    talk.weights_loaded(1, 1, 1)
    talk.joins(2, holds=(1, 1))
    assert talk.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], (
        "the other is idle, but 5 times 800 s are not over"
    )
    assert any("1 <- revoke" in line for line in talk.goes_by(5 * 800.0 - STANDARD_TIMEOUTS.stall, 1, 2))


def test_a_lease_is_late_from_when_its_worker_had_the_weights() -> None:
    talk = training(1, 2)
    for session in (1, 2):
        talk.computed(session)
        talk.chunk(session, 1, 0, 0)
    talk.commits(1, 0)
    talk.weights_loaded(1, 1, 1)
    talk.computed(1)
    talk.later(STANDARD_TIMEOUTS.stall - 1, 1, 2)
    talk.weights_loaded(2, 1, 1)
    assert talk.goes_by(STANDARD_TIMEOUTS.stall - 1, 1, 2) == [], "the weights were long on the way"
    assert any("2 <- revoke" in line for line in talk.later(2, 1, 2))


def test_no_lease_is_late_because_the_aggregator_was_stopped() -> None:
    talk = training(1, 2)
    talk.computed(2)
    talk.later(1.25, 1, 2)
    assert talk.later(2 * STANDARD_TIMEOUTS.stall, 1, 2) == [], "what is late waits to be read"
    assert talk.core.waits(talk.now)[0].seconds == 1.25
    assert talk.goes_by(STANDARD_TIMEOUTS.stall - 2, 1, 2) == []
    assert talk.goes_by(2, 1, 2)[0] == "1 <- revoke", "from then on it has to hurry"
