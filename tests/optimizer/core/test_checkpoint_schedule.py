"""When an optimizer takes checkpoints, and what happens when one fails. Each string is one effect, in order."""

from __future__ import annotations

import pytest

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from services.protocol.plan import JobPlan
from tests.support.dialogues.optimizer import Dialogue, training


def test_a_checkpoint_is_taken_after_the_last_chunk_of_a_step() -> None:
    talk = training(step=1)
    talk.chunk(0, 1, 1)
    talk.chunk(1, 1, 1)
    talk.measured(1)
    assert talk.updated(1, [0]) == []
    assert talk.updated(1, [0]) == [], "repeated"
    assert talk.updated(1, [1]) == ["snapshot 1.2"]
    assert talk.give(ev.Saved(talk.written(1, 2))) == ["send checkpoint 1.2"]


def assert_late(effects: list[str], version: str, *, writing_step: int) -> None:
    """Check that a checkpoint is reported as late, because that of another step is being written."""
    (line,) = effects
    assert line.startswith(f"send no checkpoint {version}: ") and f"step {writing_step} is still" in line


EVERY_STEP = JobPlan(steps=9, micro_batches=2, checkpoint_every=1)


def test_no_step_waits_for_a_slow_disk() -> None:
    talk = training(plan=EVERY_STEP)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    assert_late(talk.step(1, 1), "1.2", writing_step=1)
    assert_late(talk.step(1, 2), "1.3", writing_step=1)
    assert talk.saved(1, 1) == ["send checkpoint 1.1", "snapshot 1.3"], "at once: all weights are of step 3"
    assert_late(talk.step(1, 3), "1.4", writing_step=3)
    talk.chunk(0, 1, 4)
    talk.chunk(1, 1, 4)
    talk.measured(4)
    assert talk.saved(1, 3) == ["send checkpoint 1.3"], "an update is in progress"
    assert talk.updated(4, [0]) == []
    assert talk.updated(4, [1]) == ["snapshot 1.5"]


BY_TIME = JobPlan(steps=99, micro_batches=2, checkpoint_every=0, checkpoint_seconds=60.0)


def test_checkpoints_by_time() -> None:
    talk = training(plan=BY_TIME)
    assert talk.step(1, 0, 500.0) == [], "the time counts from the first step"
    assert talk.step(1, 1, 59.0) == []
    assert talk.step(1, 2, 1.0) == ["snapshot 1.3"]
    assert talk.step(1, 3, 59.0) == [], "the time counts from checkpoint 1.3"
    assert_late(talk.step(1, 4, 1.0), "1.5", writing_step=3)
    assert talk.save_failed(1, 3) == ["send no checkpoint 1.3: disk full", "snapshot 1.5"]
    assert talk.save_failed(1, 5) == ["send no checkpoint 1.5: disk full"]
    assert talk.step(1, 5, 30.0) == [], "not before the next is due"
    assert talk.step(1, 6, 30.0) == ["snapshot 1.7"]


def test_checkpoints_by_steps_and_by_time() -> None:
    plan = JobPlan(steps=99, micro_batches=2, checkpoint_every=2, checkpoint_seconds=60.0)
    talk = training(plan=plan)
    talk.step(1, 0)
    assert talk.step(1, 1, 40.0) == ["snapshot 1.2"]
    talk.saved(1, 2)
    assert talk.step(1, 2, 40.0) == [], "the time counts from the newest checkpoint, whatever made it due"
    assert talk.step(1, 3, 40.0) == ["snapshot 1.4"]
    talk.saved(1, 4)
    assert talk.step(1, 4, 60.0) == ["snapshot 1.5"]


def test_the_time_to_a_new_jobs_checkpoint_counts_from_its_first_step() -> None:
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
    assert_late(talk.step(1, 3), "1.4", writing_step=2)
    assert talk.saved(1, 2) == ["send checkpoint 1.2", "snapshot 1.4"]


def test_the_last_checkpoint_is_made_even_if_the_one_before_fails() -> None:
    talk = training(step=1)
    talk.step(1, 1)
    talk.step(1, 2)
    talk.step(1, 3)
    assert talk.save_failed(1, 2) == ["send no checkpoint 1.2: disk full", "snapshot 1.4"]
    assert talk.save_failed(1, 4) == ["snapshot 1.4"]
    assert talk.saved(1, 4) == ["send checkpoint 1.4"]


def test_a_job_goes_on_without_a_checkpoint_and_tries_when_the_next_is_due() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=2))
    talk.step(1, 0)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    assert talk.save_failed(1, 2) == ["send no checkpoint 1.2: disk full"]
    assert talk.step(1, 2) == []
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.open()[-1] == "send checkpoint 0.0", "the newest good checkpoint is unchanged"


def test_with_on_error_stop_a_job_fails_without_a_checkpoint() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, stops_without_checkpoint=True))
    talk.step(1, 0)
    assert talk.save_failed(1, 1) == ["send failure: disk full (checkpoint.on_error: stop)"]


def test_the_first_and_the_last_checkpoint_are_tried_twice_then_the_job_fails() -> None:
    talk = training(step=3)
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.save_failed(1, 4) == ["snapshot 1.4"]
    (failure,) = talk.save_failed(1, 4)
    assert failure.startswith("send failure: disk full (tried twice")
    talk = Dialogue()
    talk.open()
    talk.loaded()
    talk.order(pb.Initialise(job="a", layout_json="layout"))
    talk.give(ev.Allocated("a", "layout", talk.elements))
    talk.initial(0)
    assert talk.initial(1) == ["store #1", "snapshot 1.0"]
    assert talk.save_failed(1, 0) == ["snapshot 1.0"]
    (failure,) = talk.save_failed(1, 0)
    assert failure.startswith("send failure: disk full (tried twice")


def test_a_late_checkpoint_of_a_former_generation_is_not_the_newest() -> None:
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    talk.give(ev.TensorsLost())
    talk.open(generation=1)
    talk.loaded(generation=1, step=0, plan=EVERY_STEP)
    assert_late(talk.step(2, 0), "2.1", writing_step=1)
    assert talk.saved(1, 1) == ["snapshot 2.1"]
    assert talk.open()[-1] == "send checkpoint 1.0"
    talk.step(2, 1)
    assert talk.save_failed(1, 1) == [], "another one is being written"
    assert talk.saved(2, 1) == ["send checkpoint 2.1", "snapshot 2.2"]


def test_a_failure_is_reported_to_the_next_aggregator() -> None:
    talk = training()
    talk.give(ev.Disconnected())
    assert talk.give(ev.OperationFailed("a", "disk full")) == []
    talk.connect(2)
    assert talk.open()[-1] == "send failure: disk full"


@pytest.mark.parametrize("written", [True, False])
def test_a_failed_job_is_reported_after_its_checkpoint_is_written(written: bool) -> None:
    plan = JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop")
    talk = training(plan=plan)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    talk.step(1, 1)
    talk.chunk(0, 1, 2)
    talk.chunk(1, 1, 2)
    assert talk.measured(2, finite=False) == []
    assert not any("failure" in line for line in talk.open()), (
        "an aggregator that connects now waits for it too"
    )
    *before, last = talk.saved(1, 1) if written else talk.save_failed(1, 1)
    assert before == ["send checkpoint 1.1"] * written, "the next checkpoint is due but is not started"
    assert last.startswith("send failure: step 3: the gradient is not finite")
    assert talk.open()[-1] == last


def test_a_failed_job_is_reported_after_a_checkpoint_of_an_earlier_generation_too() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop"))
    assert talk.step(1, 0) == ["snapshot 1.1"]
    talk.order(pb.StartOver(job="a", generation=1))
    talk.chunk(0, 2, 1)
    talk.chunk(1, 2, 1)
    assert talk.measured(1, finite=False) == []
    checkpoint, failure = talk.saved(1, 1)
    assert checkpoint == "send checkpoint 1.1"
    assert failure.startswith("send failure: step 2: the gradient is not finite")


def ended(talk: Dialogue, how: str) -> list[str]:
    """End the job, by another one or by Close."""
    return talk.open("b") if how == "another job" else talk.order(pb.Close(job="a"))


@pytest.mark.parametrize("how", ["closed", "another job"])
def test_a_checkpoint_of_a_job_that_ended_is_reported(how: str) -> None:
    talk = training(plan=EVERY_STEP)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    assert "drop job" in ended(talk, how)
    assert talk.saved(1, 1) == ["send checkpoint 1.1"]
    assert talk.saved(1, 1) == [], "once"
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    ended(talk, how)
    assert talk.save_failed(1, 1) == [], "no checkpoint was written"


@pytest.mark.parametrize("how", ["closed", "another job"])
def test_a_checkpoint_written_while_no_aggregator_was_connected_is_reported_at_the_end(how: str) -> None:
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    talk.give(ev.Disconnected())
    assert talk.saved(1, 1) == []
    talk.connect(2)
    assert ended(talk, how)[:2] == ["send checkpoint 1.1", "drop job"]
