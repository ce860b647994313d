"""Dialogues about a running job that a person pauses, and resumes."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, PAUSED, QUEUED, RUNNING, SUCCEEDED
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training

STOPS = ["1 <- leave: paused by request", "save a paused", "optimizer <- SaveCheckpoint", "drop all"]


def test_a_paused_job_stops_after_the_commit_of_its_step() -> None:
    dialogue = training(1)
    dialogue.submit("b")
    assert dialogue.pause() == ["save b running", "optimizer <- Open"], "its worker comes after the step"
    assert (dialogue.job().state, dialogue.job().pausing) == (RUNNING, True)
    assert dialogue.status().job_waits[0] == "stops after its step: paused by request"
    assert dialogue.computed(1) == []
    assert dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)[-1] == "forward #0", "its work is not lost"
    lines = dialogue.commits(1, 0)
    assert [each for each in lines if each.startswith("1 <- train")] == [], "no lease of the next step"
    for line in STOPS:
        assert line in lines
    assert lines[-1] == "1 <- join", "of job b"
    job = dialogue.job()
    assert (job.state, job.pausing, job.step, job.ended_seconds) == (PAUSED, False, 1, 0)
    assert job.detail == "paused by request"


def test_workers_that_compute_stay_until_the_commit_though_the_others_have_left() -> None:
    dialogue = training(1, 2, micro_batches=1, min_workers=2)
    assert "2 <- leave: paused by request" in dialogue.pause()
    assert dialogue.goes_by(5, 1, 2) == []
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,))
    assert "1 <- leave: paused by request" in dialogue.commits(1, 0)
    assert dialogue.job().step == 1


def test_workers_that_may_check_the_step_stay_until_its_checks_are_closed() -> None:
    dialogue = training(1, 2, micro_batches=1, min_workers=2, verify_fraction=1.0)
    assert dialogue.pause() == []
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,))
    assert dialogue.computed(1, checksums={0: 7}) == ["2 <- verify 0 of 1.0"]
    checked = dialogue.computed(2, checksums={0: 7})
    assert "forward #0" in checked and checked[-1] == "2 <- leave: paused by request"
    assert "1 <- leave: paused by request" in dialogue.commits(1, 0)


def test_the_last_check_opens_the_step_though_idle_workers_have_left() -> None:
    dialogue = training(1, 2, micro_batches=1, min_workers=3, verify_fraction=1.0)
    dialogue.joins(3)
    dialogue.weights_loaded(3, 1, 0)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,))
    dialogue.computed(1, checksums={0: 7})
    checking = next(each for each in (2, 3) if each in dialogue.leases)
    dialogue.give(ev.WorkerLost(5 - checking, "gone"))
    dialogue.pause()
    assert "forward #0" in dialogue.computed(checking, checksums={0: 7})


def test_weights_that_come_before_their_commit_do_not_cost_the_step_its_line() -> None:
    dialogue = training(1)
    dialogue.pause()
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    assert "save a paused" not in dialogue.weights(1, 1, 0)
    assert "save a paused" in dialogue.commits(1, 0)
    assert any(note.startswith("Step") for note in dialogue.notes)


def test_a_commit_that_got_lost_does_not_hold_a_pause_up() -> None:
    dialogue = training(1)
    dialogue.pause()
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    dialogue.give(ev.OptimizerLost("gone"))
    dialogue.optimizer()
    assert "save a paused" in dialogue.stands(1, 1)
    assert dialogue.job().step == 1


def test_a_step_that_takes_too_long_does_not_hold_a_pause_up() -> None:
    dialogue = training(1)
    dialogue.pause()
    assert "save a paused" not in dialogue.goes_by(STANDARD_TIMEOUTS.stall - 1, 1)
    assert "save a paused" in dialogue.goes_by(2, 1)
    assert dialogue.job().step == 0


def test_a_job_that_computes_no_step_is_paused_at_once() -> None:
    dialogue = training()
    assert dialogue.pause() == ["save a paused", "optimizer <- SaveCheckpoint", "drop all"]
    dialogue = Dialogue()
    dialogue.submit()
    assert dialogue.pause()[0] == "save a paused"
    dialogue = training(1, step=4)
    assert dialogue.job().phase == "evaluate"
    assert dialogue.pause() == STOPS, "an evaluation is made again"


def test_the_last_checkpoint_is_waited_for() -> None:
    dialogue = training(1, step=4, generation=1)
    dialogue.weights_loaded(1, 1, 4)
    for batch in range(3):
        dialogue.evaluated(1, 1, 4, (batch, 1.0))
    assert dialogue.job().phase == "checkpoint"
    dialogue.pause()
    dialogue.checkpoint(1, 4)
    assert dialogue.job().state == SUCCEEDED


def test_a_resumed_job_goes_on_where_it_stopped() -> None:
    dialogue = training(1)
    dialogue.pause()
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    dialogue.commits(1, 0)
    assert dialogue.checkpoint(1, 1) == ["save a paused"], "the optimizer has saved its weights"
    job = dialogue.saved["a"].job
    assert (job.checkpoint_step, job.detail, job.state) == (1, "paused by request", PAUSED)
    assert dialogue.resume() == ["save a running", "optimizer <- Open", "1 <- join"]
    dialogue.ready(1)
    assert dialogue.stands(2, 1)[0] == "save a running"
    assert (dialogue.job().step, dialogue.job().generation) == (1, 2)


def test_a_job_that_is_resumed_before_it_has_stopped_goes_on() -> None:
    dialogue = training(1)
    dialogue.pause()
    assert dialogue.resume() == []
    assert not dialogue.job().pausing
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    lines = dialogue.commits(1, 0)
    assert "save a paused" not in lines
    assert "1 <- train 0-3 of 1.1" in lines + dialogue.weights(1, 1, 0) + dialogue.weights_loaded(1, 1, 1)


def test_pauses_do_not_count_as_starts_that_the_aggregator_died_of() -> None:
    dialogue = training()
    for _ in range(10):
        dialogue.pause()
        dialogue.resume()
    assert dialogue.job().state == RUNNING


def test_a_paused_job_can_be_cancelled() -> None:
    dialogue = training()
    dialogue.pause()
    dialogue.cancel()
    assert dialogue.job().state == CANCELLED
    assert dialogue.job().detail == "cancelled by request while paused"
    assert "a" not in dialogue.core.jobs.records


def test_what_a_paused_job_was_sent_late_changes_nothing() -> None:
    dialogue = training(1)
    dialogue.submit("b")
    dialogue.pause()
    dialogue.pause("b")
    dialogue.goes_by(STANDARD_TIMEOUTS.stall + 5, 1)
    assert dialogue.running == ""
    assert dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4) == []
    assert dialogue.commits(1, 0) == []
    assert dialogue.says(1, pb.Computed(job="a", lease=dialogue.leases[1])) == []
    assert dialogue.give(ev.Ticked()) == []
    assert dialogue.job("b").state == PAUSED
    assert dialogue.resume("b")[0] == "save b running" and dialogue.job("a").state != QUEUED


def test_an_optimizer_that_goes_back_meanwhile_does_not_hold_a_pause_up() -> None:
    dialogue = training(1, step=3, steps=10)
    dialogue.pause()
    dialogue.give(ev.OptimizerLost("it died"))
    dialogue.optimizer()
    assert "save a paused" in dialogue.stands(2, 1), "no COMMIT is on the way"
