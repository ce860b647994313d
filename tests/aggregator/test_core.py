"""Dialogues with the aggregator's core. Each line is one effect, in order; sessions are 1, 2, 3."""

from __future__ import annotations

import pytest

from aggregator import events as ev
from aggregator.fitness import RETURN_SECONDS, UNFIT_SECONDS
from aggregator.run import STALL_SECONDS
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED
from tests.aggregator.dialogue import Dialogue, layout_of, training

# ---- who is let in ----


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"protocol": 9}, "worker w1 speaks protocol 9, this aggregator 1; install the same version"),
        ({"role": "optimizer"}, "w1 says that it is a 'optimizer'; only workers attend an aggregator"),
        ({"epoch_seen": 4}, "worker w1 has obeyed epoch 4, this aggregator is of epoch 3"),
        ({"shard_index": 1, "shard_count": 2}, "worker w1 asks for shard 1 of 2; expected 0 of 1"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_by_name(words: dict[str, object], reason: str) -> None:
    (line,) = Dialogue().hello(1, **words)
    assert line.startswith(f"1 closed: {reason}")


def test_two_workers_of_one_name() -> None:
    talk = Dialogue()
    assert talk.hello(1, "box", incarnation="one") == ["1 <- welcome"]
    talk.now += 2.0
    (line,) = talk.hello(2, "box", incarnation="two")
    assert line == (
        "2 closed: a worker named box is connected already (heard 2.0 s ago); give this one another --name"
    )
    talk.now += 20.0
    assert talk.hello(3, "box", incarnation="two")[-1] == "3 <- welcome", "the first one is silent for long"


def test_a_worker_that_comes_back_takes_the_place_of_its_old_connection() -> None:
    talk = training(1)
    assert talk.hello(2, "w1", incarnation="i1") == [
        "1 closed: replaced by a newer connection of the same worker",
        "2 <- welcome",
        "2 <- join",
    ]
    assert talk.chunk(1, 1, 0, 0) == [], "the old connection is nobody's now"


def test_a_silent_worker_is_taken_for_dead() -> None:
    talk = training(1, 2)
    talk.computed(1)
    assert talk.later(16.0, 1) == [
        "2 closed: silent for 16.0 s",
        "1 <- window 1",
        "1 <- train 2-3 of 1.0",
    ]


def test_words_for_another_epoch_are_not_heard() -> None:
    talk = training(1)
    computed = pb.Computed(job="a", lease=talk.leases[1], seconds=1.0)
    talk.says(1, computed, epoch=2)
    assert talk.core.run is not None and talk.core.run.sum is not None
    assert talk.core.run.sum.busy(1)


# ---- fitness ----


def test_a_fingerprint_that_differs_is_named() -> None:
    talk = training(1)
    talk.hello(2)
    talk.give(ev.ExchangeOpened(2))
    assert talk.ready(2, blas="Haswell") == [
        "2 <- leave: fingerprint differs: blas is 'Haswell', the job's is 'SkylakeX' "
        "(`exact: false` in the job would accept it)"
    ]
    assert talk.job().state == RUNNING
    assert talk.core.status(talk.now).workers[1].state == "refused"


def test_a_fingerprint_that_differs_is_welcome_if_the_job_is_not_exact() -> None:
    talk = training(1, exact=False)
    talk.hello(2)
    assert talk.ready(2, blas="Haswell") == []
    assert talk.notes[-1] == (
        "worker w2 is ready, with what the job accepts (`exact: false`): blas is 'Haswell', the job's is 'SkylakeX'"
    )


def test_different_chips_are_told_apart() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.ready(1, arch="wormhole_b0", board="t3k", mesh_shape="1x8")
    (line,) = talk.ready(2, arch="blackhole", board="p150_x4", mesh_shape="1x4")
    assert line.startswith(
        "2 <- leave: fingerprint differs: arch is 'blackhole', the job's is 'wormhole_b0'; "
        "board is 'p150_x4', the job's is 't3k'; mesh_shape is '1x4', the job's is '1x8'"
    )


def test_a_worker_whose_mesh_cannot_be_opened_is_shown_and_waited_for() -> None:
    talk = training(1)
    talk.hello(2)
    talk.give(ev.ExchangeOpened(2))
    assert talk.says(2, pb.Unable(job="a", reason="chips busy", retries=True)) == []
    member = talk.core.status(talk.now).workers[1]
    assert (member.state, member.detail) == ("unfit", "chips busy")
    assert talk.notes[-1] == "worker w2 is unfit and tries again: chips busy"
    told = len(talk.notes)
    talk.says(2, pb.Unable(job="a", reason="chips busy", retries=True))
    assert len(talk.notes) == told, "said once"
    talk.ready(2)
    member = talk.core.status(talk.now).workers[1]
    assert (member.state, member.detail) == ("ready", "")


def test_a_job_waits_long_for_meshes_and_then_says_what_for() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.stands(0, 0)
    talk.hello(1)
    talk.says(1, pb.Unable(job="a", reason="chips busy", retries=True))
    assert talk.core.waits_for() == "workers to build the job: w1 (chips busy)"
    talk.later(UNFIT_SECONDS - 1, 1)
    assert talk.job().state == RUNNING
    talk.later(2, 1)
    assert talk.job().state == FAILED
    assert talk.job().detail == "no worker can run it; w1: chips busy"


def test_an_unfit_worker_among_refused_ones_keeps_the_job_alive() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.says(1, pb.Unable(job="a", reason="no such corpus"))
    talk.says(2, pb.Unable(job="a", reason="chips busy", retries=True))
    assert talk.job().state == RUNNING
    talk.says(2, pb.Unable(job="a", reason="no such corpus"))
    assert talk.job().state == FAILED


def test_another_layout_is_refused() -> None:
    talk = training(1)
    talk.hello(2)
    (line,) = talk.ready(2, layout=layout_of(3))
    assert "model's layout hash" in line and "give all hosts the same version of Tiermesh" in line


def test_a_job_that_nobody_can_run_fails_with_everybodys_reason() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.says(1, pb.Unable(job="a", reason="no such corpus: x.txt"))
    assert talk.job().state == RUNNING, "the other may be able to"
    lines = talk.says(2, pb.Unable(job="a", reason="mesh of 8 chips, has 1"))
    assert "save a failed" in lines
    assert talk.job().detail == (
        "no worker can run it; w1: no such corpus: x.txt; w2: mesh of 8 chips, has 1"
    )


def test_a_refused_worker_does_not_fail_a_job_that_others_run() -> None:
    talk = training(1)
    talk.hello(2)
    talk.ready(2, blas="Haswell")
    talk.give(ev.WorkerLost(1, "gone"))
    talk.later(1000.0, 2)
    assert talk.job().state == RUNNING, "worker 1 may come back"
    assert "w2 (fingerprint differs" in talk.core.waits_for()
    talk.hello(3, "w1")
    assert talk.says(3, pb.Unable(job="a", reason="broken"))[-1] == "drop all"
    assert talk.job().state == FAILED, "now there is nobody left who could"


def test_after_a_restart_a_refused_worker_may_come_first() -> None:
    before = training(1)
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.hello(2)
    talk.ready(2, blas="Haswell")
    assert talk.job().state == RUNNING
    talk.later(RETURN_SECONDS + 1, 2)
    assert talk.job().state == FAILED


# ---- the making of the initial weights ----


def test_a_job_from_nothing_to_its_first_step() -> None:
    talk = Dialogue(chunks=2)
    assert talk.submit() == ["save a queued", "save a running"]
    assert talk.optimizer() == ["optimizer <- Open"]
    assert talk.hello(1) == ["1 <- welcome", "1 <- join"]
    assert talk.stands(1, 0, state=pb.Standing.EMPTY) == ["drop all"]
    assert talk.give(ev.ExchangeOpened(1)) == []
    assert talk.ready(1) == ["save a running", "1 <- initialise"]
    description = pb.Description(job="a", lease=talk.leases[1], layout_json=talk.layout.dumps())
    assert talk.says(1, description) == ["optimizer <- Initialise"]
    assert talk.stands(1, 0, state=pb.Standing.RECEIVING) == ["drop all", "1 <- resend #0 #1"]
    assert talk.initial(1, 0) == ["keep 0 #0", "forward #0"]
    assert talk.initial(1, 1) == ["keep 0 #1", "forward #1"]
    assert talk.stands(1, 0) == ["save a running", "drop all", "optimizer <- SendWeights 1.0"]
    assert talk.weights(1, 0, 0) == ["store weights #0"]
    assert talk.sent_weights(1) == ["1.0 #0"]
    assert talk.weights(1, 0, 1) == ["store weights #1"]
    assert talk.sent_weights(1) == ["1.0 #1"]
    assert talk.holding(1, 1, 0) == ["1 <- window 2", "1 <- train 0-3 of 1.0"]


def test_the_worker_that_initialises_is_lost() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.joins(2)
    assert talk.stands(1, 0, state=pb.Standing.EMPTY) == ["drop all", "1 <- initialise"]
    assert talk.give(ev.WorkerLost(1, "gone")) == ["2 <- initialise"]
    assert talk.says(1, pb.Description(job="a", lease=talk.leases[1])) == []


def test_an_optimizer_that_lost_everything_has_the_weights_made_again() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.stands(1, 0, state=pb.Standing.EMPTY)
    assert talk.stands(2, 0, state=pb.Standing.EMPTY) == ["drop all", "1 <- revoke", "1 <- initialise"]


def test_the_worker_that_initialises_stalls() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.joins(1)
    talk.joins(2)
    talk.stands(1, 0, state=pb.Standing.EMPTY)
    assert talk.later(STALL_SECONDS + 1, 1, 2) == ["1 <- revoke", "2 <- initialise"]


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
    assert talk.holding(2, 1, 1) == talk.holding(1, 1, 1) == []


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


def test_a_worker_that_stalls_is_relieved_by_an_idle_one_alone() -> None:
    talk = training(1, 2)
    assert talk.later(STALL_SECONDS + 1, 1, 2) == [], "nobody is idle"
    talk.computed(2)
    assert talk.later(1.0, 1, 2) == ["1 <- revoke", "2 <- window 1", "2 <- train 0-1 of 1.0"]
    assert talk.core.status(talk.now).workers[0].state == "stalled"
    talk.holding(1, 1, 0)
    assert talk.core.status(talk.now).workers[0].state == "ready", "it was heard of again"


def test_the_window_moves_with_the_step() -> None:
    talk = training(1, chunks=40)
    lines = []
    for index in reversed(range(40)):
        lines += [line for line in talk.chunk(1, 1, 0, index) if "window" in line]
    assert lines == ["1 <- window 24", "1 <- window 32", "1 <- window 40"]


def test_chunks_that_are_read_in_the_workers_memory_need_no_window() -> None:
    talk = training(1, chunks=60)
    lines = []
    for index in reversed(range(60)):
        lines += [line for line in talk.chunk(1, 1, 0, index, in_place=True) if "window" in line]
    assert lines == ["1 <- window 60"], "told with the first of them, and never again in this step"
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
    assert talk.commits(1, 0) == [], "known already; people are told now"
    assert talk.weights(1, 0, 0) == [], "an older version"
    assert talk.weights(1, 1, 0) == [], "repeated"


def test_a_gradient_that_is_not_finite_is_skipped_and_said_so() -> None:
    talk = training(1)
    talk.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    commit = pb.Commit(job="a", generation=1, step=0, applied=False)
    effects = talk.core.handle(ev.FromOptimizer(commit), _clock(talk))
    assert [each.text for each in effects if isinstance(each, ev.Note)] == [
        "Step: 1, Loss: 1.0000000 (skipped: the gradient is not finite)"
    ]


def _clock(talk: Dialogue):  # type: ignore[no-untyped-def]
    from aggregator.core import Clock

    return Clock(talk.now, talk.now)


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
    assert talk.holding(1, 2, 2) == []
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
    assert talk.job().step == 3 and not talk.job().HasField("loss"), "nobody told this aggregator"


def test_a_commit_counts_while_an_evaluation_runs() -> None:
    talk = training(1, step=2, evaluate_every=2)
    assert talk.job().phase == "evaluate"
    assert talk.commits(1, 2)[0] == "drop all", "decided under an aggregator that had evaluated"
    assert (talk.job().phase, talk.job().step) == ("train", 3)


# ---- evaluation, checkpoints, the end ----


def test_an_evaluation_is_shared_and_its_loss_told() -> None:
    talk = training(1, 2, step=2, evaluate_every=2)
    assert talk.holding(1, 1, 2) == []
    assert [talk.core.run.is_computing(each) for each in talk.core.members.values()] == [True, True]  # type: ignore[union-attr]
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
    assert talk.later(STALL_SECONDS + 1, 1, 2) == ["1 <- revoke", "2 <- evaluate 0 of 1.2"]
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


def test_an_optimizer_that_cannot_go_on_fails_the_job() -> None:
    talk = training(1)
    lines = talk.give(ev.FromOptimizer(pb.Unable(job="a", reason="disk full")))
    assert lines == [
        "save a failed",
        "1 <- leave: optimizer opt: disk full",
        "optimizer <- Close",
        "drop all",
    ]


# ---- the queue ----


def test_jobs_run_one_after_the_other_in_order() -> None:
    talk = training(1)
    assert talk.submit("b") == ["save b queued"]
    assert talk.submit("c") == ["save c queued"]
    lines = talk.give(ev.CancelAsked("a"))
    assert lines == [
        "save a cancelled",
        "1 <- leave: cancelled by request",
        "optimizer <- Close",
        "drop all",
        "save b running",
        "1 <- join",
        "optimizer <- Open",
    ]
    assert [talk.job(job).state for job in "abc"] == [CANCELLED, RUNNING, QUEUED]
    assert talk.chunk(1, 1, 0, 0) == [], "of the job that is over"


def test_a_queued_job_is_cancelled_where_it_waits() -> None:
    talk = training(1)
    talk.submit("b")
    assert talk.give(ev.CancelAsked("b")) == ["save b cancelled"]
    assert talk.give(ev.CancelAsked("b")) == [], "it has ended"
    assert talk.give(ev.CancelAsked("no such job")) == []
    assert talk.job("a").state == RUNNING


def test_a_restart_goes_on_with_what_ran_before_what_waited() -> None:
    before = Dialogue()
    before.submit("a")
    before.submit("b")
    before.give(ev.CancelAsked("a"))
    before.submit("c")
    talk = Dialogue(epoch=4, records=[before.saved[job] for job in "acb"])
    assert talk.give(ev.Ticked()) == ["save b running"]
    assert talk.core.status(talk.now).running_job == "b"


def test_what_a_job_waits_for_is_said() -> None:
    talk = Dialogue()
    assert talk.core.waits_for() == ""
    talk.submit()
    assert talk.core.waits_for() == "the optimizer: not connected yet"
    talk.optimizer()
    assert talk.core.waits_for() == "the optimizer's answer"
    talk.stands(1, 0)
    assert talk.core.waits_for() == "workers: none is connected"
    talk.hello(1)
    assert talk.core.waits_for() == "workers to build the job: w1 (connected)"
    talk.give(ev.ExchangeOpened(1))
    talk.ready(1)
    assert talk.core.waits_for() == "train of step 0; 0 of 1 workers hold its weights"
    talk.give(ev.OptimizerLost("opt:1: refused"))
    assert talk.core.waits_for() == "the optimizer: opt:1: refused"
