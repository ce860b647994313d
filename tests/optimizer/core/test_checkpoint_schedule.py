"""When an optimizer has checkpoints made, and what it does without them. Each line is one effect, in order."""

from __future__ import annotations

import pytest

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from services.protocol.plan import JobPlan
from tests.support.dialogues.optimizer import Dialogue, training


def test_checkpoints_are_taken_after_a_steps_last_chunk() -> None:
    talk = training(step=1)
    talk.chunk(0, 1, 1)
    talk.chunk(1, 1, 1)
    talk.measured(1)
    assert talk.updated(1, [0]) == []
    assert talk.updated(1, [0]) == [], "repeated"
    assert talk.updated(1, [1]) == ["snapshot 1.2"]
    assert talk.give(ev.Saved(talk.written(1, 2))) == ["say checkpoint 1.2"]


EVERY_STEP = JobPlan(steps=9, micro_batches=2, checkpoint_every=1)


def test_no_step_waits_for_a_slow_disk() -> None:
    talk = training(plan=EVERY_STEP)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    late = "that of step 1 is still being written; one follows as soon as the disk is free"
    assert talk.step(1, 1) == [f"say no checkpoint 1.2: {late}"]
    assert talk.step(1, 2) == [f"say no checkpoint 1.3: {late}"]
    assert talk.saved(1, 1) == ["say checkpoint 1.1", "snapshot 1.3"], "at once: the weights rest"
    assert talk.step(1, 3) == [f"say no checkpoint 1.4: {late.replace('step 1', 'step 3')}"]
    talk.chunk(0, 1, 4)
    talk.chunk(1, 1, 4)
    talk.measured(4)
    assert talk.saved(1, 3) == ["say checkpoint 1.3"], "an update is under way"
    assert talk.updated(4, [0]) == []
    assert talk.updated(4, [1]) == ["snapshot 1.5"]


BY_TIME = JobPlan(steps=99, micro_batches=2, checkpoint_every=0, checkpoint_seconds=60.0)


def test_checkpoints_by_the_clock() -> None:
    talk = training(plan=BY_TIME)
    assert talk.step(1, 0, 500.0) == [], "from the first step on"
    assert talk.step(1, 1, 59.0) == []
    assert talk.step(1, 2, 1.0) == ["snapshot 1.3"]
    assert talk.step(1, 3, 59.0) == [], "from that one on"
    (late,) = talk.step(1, 4, 1.0)
    assert late.startswith("say no checkpoint 1.5: that of step 3 is still being written")
    assert talk.not_saved(1, 3) == ["say no checkpoint 1.3: disk full", "snapshot 1.5"]
    assert talk.not_saved(1, 5) == ["say no checkpoint 1.5: disk full"]
    assert talk.step(1, 5, 30.0) == [], "not before the next is due"
    assert talk.step(1, 6, 30.0) == ["snapshot 1.7"]


def test_checkpoints_by_steps_and_by_the_clock() -> None:
    plan = JobPlan(steps=99, micro_batches=2, checkpoint_every=2, checkpoint_seconds=60.0)
    talk = training(plan=plan)
    talk.step(1, 0)
    assert talk.step(1, 1, 40.0) == ["snapshot 1.2"]
    talk.saved(1, 2)
    assert talk.step(1, 2, 40.0) == [], "from the newest one on, whatever it was due by"
    assert talk.step(1, 3, 40.0) == ["snapshot 1.4"]
    talk.saved(1, 4)
    assert talk.step(1, 4, 60.0) == ["snapshot 1.5"]


def test_the_clock_of_a_new_job_begins_with_its_first_step() -> None:
    talk = Dialogue()
    talk.open()
    talk.loaded(plan=BY_TIME)
    talk.order(pb.Initialise(job="a", layout_json="layout"))
    talk.give(ev.Allocated("a", "layout", talk.elements))
    talk.initial(0)
    talk.initial(1)
    talk.saved(1, 0)
    assert talk.step(1, 0, 500.0) == []
    assert talk.step(1, 1, 60.0) == ["snapshot 1.2"]


def test_the_last_checkpoint_waits_for_the_one_before() -> None:
    talk = training(step=1)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    assert talk.step(1, 2) == [], "none is due"
    (late,) = talk.step(1, 3)
    assert late.startswith("say no checkpoint 1.4: that of step 2 is still being written")
    assert talk.saved(1, 2) == ["say checkpoint 1.2", "snapshot 1.4"]


def test_the_last_checkpoint_is_made_even_if_the_one_before_fails() -> None:
    talk = training(step=1)
    talk.step(1, 1)
    talk.step(1, 2)
    talk.step(1, 3)
    assert talk.not_saved(1, 2) == ["say no checkpoint 1.2: disk full", "snapshot 1.4"]
    assert talk.not_saved(1, 4) == ["snapshot 1.4"]
    assert talk.saved(1, 4) == ["say checkpoint 1.4"]


def test_a_job_goes_on_without_a_checkpoint_and_tries_when_the_next_is_due() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=2))
    talk.step(1, 0)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    assert talk.not_saved(1, 2) == ["say no checkpoint 1.2: disk full"]
    assert talk.step(1, 2) == []
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.open()[-1] == "say checkpoint 0.0", "the last good one is what it was"


def test_a_job_that_wants_its_checkpoints_stops_without_one() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, stops_without_checkpoint=True))
    talk.step(1, 0)
    assert talk.not_saved(1, 1) == ["say unable: disk full (checkpoint.on_error: stop)"]


def test_the_first_and_the_last_checkpoint_are_tried_twice_then_the_job_fails() -> None:
    failed = ["say unable: disk full (tried twice; a job needs its first and last one)"]
    talk = training(step=3)
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.not_saved(1, 4) == ["snapshot 1.4"]
    assert talk.not_saved(1, 4) == failed
    talk = Dialogue()
    talk.open()
    talk.loaded()
    talk.order(pb.Initialise(job="a", layout_json="layout"))
    talk.give(ev.Allocated("a", "layout", talk.elements))
    talk.initial(0)
    assert talk.initial(1) == ["store #1", "snapshot 1.0"]
    assert talk.not_saved(1, 0) == ["snapshot 1.0"]
    assert talk.not_saved(1, 0) == failed


def test_what_a_former_generation_saves_late_is_not_taken_for_the_newest() -> None:
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    talk.give(ev.TensorsLost())
    talk.open(generation=1)
    talk.loaded(generation=1, step=0, plan=EVERY_STEP)
    (late,) = talk.step(2, 0)
    assert late.startswith("say no checkpoint 2.1: that of step 1 is still being written"), (
        "one copy at a time"
    )
    assert talk.saved(1, 1) == ["snapshot 2.1"]
    assert talk.open()[-1] == "say checkpoint 1.0"
    talk.step(2, 1)
    assert talk.not_saved(1, 1) == [], "another one is being written"
    assert talk.saved(2, 1) == ["say checkpoint 2.1", "snapshot 2.2"]


def test_a_checkpoint_that_could_not_be_written_is_told_to_whoever_comes() -> None:
    talk = training()
    talk.give(ev.Disconnected())
    assert talk.give(ev.OperationFailed("a", "disk full")) == []
    talk.connect(2)
    assert talk.open()[-1] == "say unable: disk full"


@pytest.mark.parametrize("written", [True, False])
def test_the_end_of_a_job_is_told_after_the_checkpoint_that_is_being_written(written: bool) -> None:
    plan = JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop")
    talk = training(plan=plan)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    talk.step(1, 1)
    talk.chunk(0, 1, 2)
    talk.chunk(1, 1, 2)
    assert talk.measured(2, finite=False) == []
    assert not any("unable" in line for line in talk.open()), "to whoever connects now, neither"
    *before, last = talk.saved(1, 1) if written else talk.not_saved(1, 1)
    assert before == ["say checkpoint 1.1"] * written, "the next one, though due, is not begun"
    assert last.startswith("say unable: step 3: the gradient is not finite")
    assert talk.open()[-1] == last


def test_what_is_written_of_a_step_that_started_over_since_comes_before_the_end_too() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop"))
    assert talk.step(1, 0) == ["snapshot 1.1"]
    talk.order(pb.StartOver(job="a", generation=1))
    talk.chunk(0, 2, 1)
    talk.chunk(1, 2, 1)
    assert talk.measured(1, finite=False) == []
    told, end = talk.saved(1, 1)
    assert told == "say checkpoint 1.1"
    assert end.startswith("say unable: step 2: the gradient is not finite")


def ended(talk: Dialogue, how: str) -> list[str]:
    """The job ends, under an aggregator that has more to do or not."""
    return talk.open("b") if how == "another job" else talk.order(pb.Close(job="a"))


@pytest.mark.parametrize("how", ["closed", "another job"])
def test_of_a_job_that_ended_meanwhile_is_told_what_was_written(how: str) -> None:
    talk = training(plan=EVERY_STEP)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    assert "drop job" in ended(talk, how)
    assert talk.saved(1, 1) == ["say checkpoint 1.1"]
    assert talk.saved(1, 1) == [], "once"
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    ended(talk, how)
    assert talk.not_saved(1, 1) == [], "there is none"


@pytest.mark.parametrize("how", ["closed", "another job"])
def test_of_a_job_that_ended_is_told_what_was_written_while_nobody_listened(how: str) -> None:
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    talk.give(ev.Disconnected())
    assert talk.saved(1, 1) == []
    talk.connect(2)
    assert ended(talk, how)[:2] == ["say checkpoint 1.1", "drop job"]
