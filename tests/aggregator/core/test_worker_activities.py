"""What workers do with their time, as the core follows it: computing, waiting, and idle for a reason."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from protos.jobs_pb2 import RUNNING
from services.protocol.activities import efficiency
from tests.support.dialogues.aggregator import Dialogue, training


def activities(dialogue: Dialogue) -> list[str]:
    return [each.activity for each in dialogue.status().workers]


def test_a_step_is_computing_then_wire_then_others_then_the_update() -> None:
    dialogue = training(1, 2)
    assert activities(dialogue) == ["computing", "computing"]
    dialogue.now += 4.0
    dialogue.computed(1, 3.0)
    assert activities(dialogue) == ["wire", "computing"]
    dialogue.now += 1.0
    dialogue.chunk(1, 1, 0, 0)
    assert activities(dialogue) == ["others", "computing"]
    dialogue.now += 2.0
    dialogue.computed(2, 7.0)
    dialogue.chunk(2, 1, 0, 0)
    assert activities(dialogue) == ["update", "update"]
    dialogue.now += 3.0
    dialogue.commits(1, 0)
    assert activities(dialogue) == ["computing", "computing"]
    times = dict(dialogue.job().worker_seconds)
    assert times == pytest.approx({"computing": 3.0 + 7.0, "wire": 2.0, "others": 2.0, "update": 6.0})
    assert efficiency(times) == pytest.approx(0.5)
    assert dialogue.status().worker_seconds == pytest.approx(times)
    assert dialogue.job().workers == 2


def test_a_step_is_published_with_the_parts_of_its_time_and_who_was_waited_for() -> None:
    dialogue = training(1, 2)
    for step in (0, 1):
        for session, seconds in ((1, 4.0), (2, 2.0)):
            dialogue.now += seconds
            dialogue.computed(session, 4.0)
            dialogue.chunk(session, 1, step, 0, losses=(1.0, 1.0))
        dialogue.now += 3.0
        dialogue.commits(1, step)
    first, second = [each for each in dialogue.published if each.kind == "step"]
    assert (first.split, first.waited_for) == (None, "w2"), "it is unknown when the first step began"
    assert (second.step_seconds, second.waited_for) == (9.0, "w2")
    split = second.split
    assert split is not None
    assert (split.compute_seconds, split.update_seconds) == pytest.approx((4.0, 3.0))
    assert split.wire_seconds == pytest.approx(1.0), "two seconds of one of two workers"
    assert split.wait_seconds == pytest.approx(1.0), "two seconds of the other"


def test_workers_that_a_step_is_too_small_for_are_idle_for_that_reason_all_the_time() -> None:
    dialogue = training(1, 2, 3, micro_batches=2)
    assert sorted(activities(dialogue)) == ["computing", "computing", "few_micro_batches"]
    dialogue.now += 5.0
    for session in (1, 2):
        dialogue.computed(session, 5.0)
        dialogue.chunk(session, 1, 0, 0)
    assert sorted(activities(dialogue)) == ["few_micro_batches", "update", "update"]
    assert dialogue.job().worker_seconds == pytest.approx({"computing": 10.0, "few_micro_batches": 5.0})
    assert dialogue.core.activities.times.count_idle()["few_micro_batches"] == 1


def test_workers_without_a_job_are_idle_and_those_that_are_gone_are_not_counted() -> None:
    dialogue = training(1, 2)
    dialogue.cancel()
    assert activities(dialogue) == ["no_job", "no_job"]
    dialogue.later(2.0, 1, 2)
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.later(2.0, 1)
    dialogue.later(2.0, 1)
    assert dialogue.core.activities.times.count_idle()["no_job"] == 1
    assert dialogue.status().worker_seconds == pytest.approx({"no_job": 6.0 + 2.0})


def test_a_job_without_its_optimizer_waits_and_says_so_once() -> None:
    dialogue = training(1)
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.give(ev.OptimizerLost("opt:1: refused"))
    dialogue.give(ev.OptimizerLost("opt:1: refused"))
    assert activities(dialogue) == ["waits_for_optimizer"]
    dialogue.later(1.0, 1)
    dialogue.later(1.0, 1)
    assert (dialogue.job().state, dialogue.job().waiting) == (
        RUNNING,
        "waits for the optimizer: opt:1: refused",
    )
    assert dialogue.notes.count("optimizer opt is gone: opt:1: refused") == 1
    dialogue.optimizer()
    assert dialogue.notes[-1] == "optimizer opt is connected"
    dialogue.later(1.0, 1)
    assert dialogue.job().waiting == ""


def test_a_job_with_too_few_workers_waits_and_its_end_takes_that_back() -> None:
    dialogue = Dialogue()
    dialogue.submit(min_workers=3)
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 0))
    dialogue.stands(1, 0)
    dialogue.later(1.0, 1)
    assert activities(dialogue) == ["waits_for_workers"]
    assert dialogue.job().waiting.startswith("waits for workers: 1 of the 3 wanted are ready (min_workers)")
    assert (dialogue.job().state, dialogue.job().workers) == (RUNNING, 1)
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.cancel()
    assert (dialogue.job().waiting, dialogue.job().workers) == ("", 0)


def test_the_age_of_a_speed_is_the_time_since_the_last_report() -> None:
    dialogue = training(1)
    dialogue.now += 2.0
    dialogue.computed(1, 2.0)
    dialogue.later(2.0, 1)
    (worker,) = dialogue.status().workers
    assert (worker.micro_batches_per_second, worker.seconds_since_speed) == (2.0, 2.0)


def test_an_evaluation_counts_its_batches_and_tells_them_if_it_takes_long() -> None:
    dialogue = training(1, 2, evaluate_every=2)
    for step in (0, 1):
        dialogue.now += 1.0
        for session in (1, 2):
            dialogue.chunk(session, 1, step, 0, losses=(1.0, 1.0))
        dialogue.commits(1, step)
        dialogue.weights(1, step + 1, 0)
    assert dialogue.job().phase == "evaluate"
    assert (dialogue.job().evaluated_batches, dialogue.job().evaluation_batches) == (0, 3)
    for session in (1, 2):
        dialogue.weights_loaded(session, 1, 2)
    assert activities(dialogue) == ["computing", "computing"]
    dialogue.now += 4.0
    dialogue.evaluated(1, 1, 2, (0, 1.0))
    assert (dialogue.job().evaluated_batches, dialogue.notes[-1]) == (1, "evaluating, 1 of 3 batches")
    left = dialogue.job().seconds_left
    # Two steps of 1 s, two thirds of this evaluation at its speed, and one more that has as many batches as three of
    # the 12 passes of three steps, without their backward halves.
    assert left == pytest.approx(2 * 1.0 + 8.0 + 3 / 4 / 3)
    dialogue.now += 0.5
    dialogue.evaluated(2, 1, 2, (1, 2.0))
    assert dialogue.notes[-1] == "evaluating, 1 of 3 batches", "lines are seconds apart"
    dialogue.evaluated(1, 1, 2, (2, 6.0))
    assert (dialogue.job().evaluated_batches, dialogue.job().evaluation_batches) == (0, 0)
    assert dialogue.notes[-1].startswith("Validation loss: 3.0")
