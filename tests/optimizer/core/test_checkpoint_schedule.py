"""When an optimizer takes checkpoints, and what happens when one fails. Each string is one effect, in order."""

from __future__ import annotations

import pytest

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from services.protocol.plan import JobPlan
from tests.support.dialogues.optimizer import Dialogue, training


def test_a_checkpoint_is_taken_after_the_last_chunk_of_a_step() -> None:
    dialogue = training(step=1)
    dialogue.chunk(0, 1, 1)
    dialogue.chunk(1, 1, 1)
    dialogue.staged()
    assert dialogue.updated(1, [0]) == []
    assert dialogue.updated(1, [0]) == [], "repeated"
    assert dialogue.updated(1, [1]) == ["snapshot 1.2"]
    assert dialogue.give(ev.Saved(dialogue.written(1, 2))) == ["send checkpoint 1.2"]


def assert_late(effects: list[str], version: str, *, writing_step: int) -> None:
    """Check that a checkpoint is reported as late, because that of another step is being written."""
    (line,) = effects
    assert line.startswith(f"send no checkpoint {version}: ") and f"step {writing_step} is still" in line


EVERY_STEP = JobPlan(steps=9, micro_batches=2, checkpoint_every=1)


def test_no_step_waits_for_a_slow_disk() -> None:
    dialogue = training(plan=EVERY_STEP)
    assert dialogue.step(1, 0) == ["snapshot 1.1"]
    assert_late(dialogue.step(1, 1), "1.2", writing_step=1)
    assert_late(dialogue.step(1, 2), "1.3", writing_step=1)
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1", "snapshot 1.3"], (
        "at once: all weights are of step 3"
    )
    assert_late(dialogue.step(1, 3), "1.4", writing_step=3)
    dialogue.chunk(0, 1, 4)
    dialogue.chunk(1, 1, 4)
    dialogue.staged()
    assert dialogue.saved(1, 3) == ["send checkpoint 1.3"], "an update is in progress"
    assert dialogue.updated(4, [0]) == []
    assert dialogue.updated(4, [1]) == ["snapshot 1.5"]


BY_TIME = JobPlan(steps=99, micro_batches=2, checkpoint_every=0, checkpoint_seconds=60.0)


def test_checkpoints_by_time() -> None:
    dialogue = training(plan=BY_TIME)
    assert dialogue.step(1, 0, 500.0) == [], "the time counts from the first step"
    assert dialogue.step(1, 1, 59.0) == []
    assert dialogue.step(1, 2, 1.0) == ["snapshot 1.3"]
    assert dialogue.step(1, 3, 59.0) == [], "the time counts from checkpoint 1.3"
    assert_late(dialogue.step(1, 4, 1.0), "1.5", writing_step=3)
    assert dialogue.save_failed(1, 3) == ["send no checkpoint 1.3: disk full", "snapshot 1.5"]
    assert dialogue.save_failed(1, 5) == ["send no checkpoint 1.5: disk full"]
    assert dialogue.step(1, 5, 30.0) == [], "not before the next is due"
    assert dialogue.step(1, 6, 30.0) == ["snapshot 1.7"]


def test_checkpoints_by_steps_and_by_time() -> None:
    plan = JobPlan(steps=99, micro_batches=2, checkpoint_every=2, checkpoint_seconds=60.0)
    dialogue = training(plan=plan)
    dialogue.step(1, 0)
    assert dialogue.step(1, 1, 40.0) == ["snapshot 1.2"]
    dialogue.saved(1, 2)
    assert dialogue.step(1, 2, 40.0) == [], "the time counts from the newest checkpoint, whatever made it due"
    assert dialogue.step(1, 3, 40.0) == ["snapshot 1.4"]
    dialogue.saved(1, 4)
    assert dialogue.step(1, 4, 60.0) == ["snapshot 1.5"]


def test_the_time_to_a_new_jobs_checkpoint_counts_from_its_first_step() -> None:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded(plan=BY_TIME)
    dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="layout")))
    dialogue.give(ev.Allocated("a", "layout", dialogue.elements))
    dialogue.initial(0)
    dialogue.initial(1)
    dialogue.saved(1, 0)
    assert dialogue.step(1, 0, 500.0) == []
    assert dialogue.step(1, 1, 60.0) == ["snapshot 1.2"]


def test_the_last_checkpoint_waits_for_the_one_before() -> None:
    dialogue = training(step=1)
    assert dialogue.step(1, 1) == ["snapshot 1.2"]
    assert dialogue.step(1, 2) == [], "none is due"
    assert_late(dialogue.step(1, 3), "1.4", writing_step=2)
    assert dialogue.saved(1, 2) == ["send checkpoint 1.2", "snapshot 1.4"]


def test_the_last_checkpoint_is_made_even_if_the_one_before_fails() -> None:
    dialogue = training(step=1)
    dialogue.step(1, 1)
    dialogue.step(1, 2)
    dialogue.step(1, 3)
    assert dialogue.save_failed(1, 2) == ["send no checkpoint 1.2: disk full", "snapshot 1.4"]
    assert dialogue.save_failed(1, 4) == ["snapshot 1.4"]
    assert dialogue.saved(1, 4) == ["send checkpoint 1.4"]


def test_a_job_goes_on_without_a_checkpoint_and_tries_when_the_next_is_due() -> None:
    dialogue = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=2))
    dialogue.step(1, 0)
    assert dialogue.step(1, 1) == ["snapshot 1.2"]
    assert dialogue.save_failed(1, 2) == ["send no checkpoint 1.2: disk full"]
    assert dialogue.step(1, 2) == []
    assert dialogue.step(1, 3) == ["snapshot 1.4"]
    assert dialogue.open()[-1] == "send checkpoint 0.0", "the newest good checkpoint is unchanged"


def test_with_on_error_stop_a_job_fails_without_a_checkpoint() -> None:
    dialogue = training(
        plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, stops_without_checkpoint=True)
    )
    dialogue.step(1, 0)
    assert dialogue.save_failed(1, 1) == ["send failure: disk full (checkpoint.on_error: stop)"]


def test_the_last_checkpoint_is_tried_until_the_disk_has_space() -> None:
    dialogue = training(step=3)
    assert dialogue.step(1, 3) == ["snapshot 1.4"]
    missed, later = dialogue.save_failed(1, 4, out_of_space=True)
    assert missed.startswith("send no checkpoint 1.4: disk full; trying again every 5 s until there is space")
    assert later == "retry later"
    for _ in range(20):
        assert dialogue.give(ev.RetryDue("a")) == ["snapshot 1.4"]
        assert dialogue.save_failed(1, 4, out_of_space=True) == ["retry later"], "it is told once"
    assert dialogue.give(ev.RetryDue("a")) == ["snapshot 1.4"]
    assert dialogue.saved(1, 4) == ["send checkpoint 1.4"]
    assert dialogue.give(ev.RetryDue("a")) == [], "late"


def test_the_first_checkpoint_waits_for_space_while_the_job_is_cancelled() -> None:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded()
    dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="layout")))
    dialogue.give(ev.Allocated("a", "layout", dialogue.elements))
    dialogue.initial(0)
    dialogue.initial(1)
    assert dialogue.save_failed(1, 0, out_of_space=True)[-1] == "retry later"
    dialogue.order(pb.Close(job="a"))
    assert dialogue.give(ev.RetryDue("a")) == []


def test_the_first_and_the_last_checkpoint_are_tried_twice_then_the_job_fails() -> None:
    dialogue = training(step=3)
    assert dialogue.step(1, 3) == ["snapshot 1.4"]
    assert dialogue.save_failed(1, 4) == ["snapshot 1.4"]
    (failure,) = dialogue.save_failed(1, 4)
    assert failure.startswith("send failure: disk full (tried twice")
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded()
    dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="layout")))
    dialogue.give(ev.Allocated("a", "layout", dialogue.elements))
    dialogue.initial(0)
    assert dialogue.initial(1) == ["store #1", "snapshot 1.0"]
    assert dialogue.save_failed(1, 0) == ["snapshot 1.0"]
    (failure,) = dialogue.save_failed(1, 0)
    assert failure.startswith("send failure: disk full (tried twice")


def test_a_job_is_loaded_behind_its_checkpoint_that_is_being_written() -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.give(ev.TensorsLost())
    assert dialogue.open(generation=1) == [], "it waits for the checkpoint that is on its way to the disk"
    assert dialogue.loaded(generation=1, step=0, plan=EVERY_STEP) == [], "nothing was to be loaded yet"
    assert dialogue.saved(1, 1) == ["load a"]
    dialogue.loaded(generation=1, step=1, plan=EVERY_STEP)
    assert dialogue.step(2, 1) == ["snapshot 2.2"]
    dialogue.step(2, 2)
    assert dialogue.save_failed(1, 1) == [], "another one is being written"
    assert dialogue.saved(2, 2) == ["send checkpoint 2.2", "snapshot 2.3"]


def test_a_failure_is_reported_to_the_next_aggregator() -> None:
    dialogue = training()
    dialogue.give(ev.Disconnected())
    assert dialogue.give(ev.OperationFailed("a", "disk full")) == []
    assert dialogue.connect(2)[-1] == "send failure: disk full"


@pytest.mark.parametrize("written", [True, False])
def test_a_failed_job_is_reported_after_its_checkpoint_is_written(written: bool) -> None:
    plan = JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop")
    dialogue = training(plan=plan)
    assert dialogue.step(1, 0) == ["snapshot 1.1"]
    dialogue.step(1, 1)
    dialogue.chunk(0, 1, 2)
    dialogue.chunk(1, 1, 2)
    assert dialogue.staged(finite=False) == []
    assert not any("failure" in line for line in dialogue.open()), (
        "an aggregator that connects now waits for it too"
    )
    *before, last = dialogue.saved(1, 1) if written else dialogue.save_failed(1, 1)
    assert before == ["send checkpoint 1.1"] * written, "the next checkpoint is due but is not started"
    assert last.startswith("send failure: step 3: the gradient is not finite")
    assert dialogue.open()[-1] == last


def test_a_failed_job_is_reported_after_a_checkpoint_of_an_earlier_generation_too() -> None:
    dialogue = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, on_non_finite="stop"))
    assert dialogue.step(1, 0) == ["snapshot 1.1"]
    dialogue.order(pb.StartOver(job="a", generation=1))
    dialogue.chunk(0, 2, 1)
    dialogue.chunk(1, 2, 1)
    assert dialogue.staged(finite=False) == []
    checkpoint, failure = dialogue.saved(1, 1)
    assert checkpoint == "send checkpoint 1.1"
    assert failure.startswith("send failure: step 2: the gradient is not finite")


def ended(dialogue: Dialogue) -> list[str]:
    """End the job."""
    return dialogue.order(pb.Close(job="a"))


def test_a_checkpoint_of_a_job_that_ended_is_reported() -> None:
    dialogue = training(plan=EVERY_STEP)
    assert dialogue.step(1, 0) == ["snapshot 1.1"]
    assert "drop job" in ended(dialogue)
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1"]
    assert dialogue.saved(1, 1) == [], "once"
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    ended(dialogue)
    assert dialogue.save_failed(1, 1) == ["send no checkpoint 1.1: disk full"]
    assert dialogue.save_failed(1, 1) == [], "once"


def test_a_checkpoint_written_while_no_aggregator_was_connected_is_reported_to_the_next_one() -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.give(ev.Disconnected())
    assert dialogue.saved(1, 1) == []
    assert dialogue.connect(2) == ["save epoch 2", "send training 1.1, missing #0 #1", "send checkpoint 1.1"]
    assert ended(dialogue)[:2] == ["send checkpoint 1.1", "drop job"]


SELDOM = JobPlan(steps=9, micro_batches=2, checkpoint_every=0)
CLOSE = pb.Close(job="a", checkpoint=True)


def stopped(dialogue: Dialogue, how: str) -> list[str]:
    """End the job so that its newest weights are kept."""
    return dialogue.give(ev.Stopping()) if how == "stop" else dialogue.order(CLOSE)


@pytest.mark.parametrize("how", ["closed", "stop"])
def test_the_last_commit_becomes_a_checkpoint_at_the_end(how: str) -> None:
    dialogue = training(plan=SELDOM)
    assert dialogue.step(1, 0) == []
    dialogue.chunk(0, 1, 1)
    effects = stopped(dialogue, how)
    assert effects == ["snapshot 1.1", "send checkpoint 0.0", "drop job"], "the open step is dropped"
    assert not dialogue.core.is_idle
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1"]
    assert dialogue.core.is_idle


def test_a_job_that_ends_without_a_new_commit_needs_no_checkpoint() -> None:
    dialogue = training(plan=EVERY_STEP)
    assert dialogue.order(CLOSE) == ["send checkpoint 0.0", "drop job"]
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    assert dialogue.order(CLOSE) == ["send checkpoint 0.0", "drop job"], "it is being written"
    dialogue = training(plan=SELDOM)
    dialogue.step(1, 0)
    assert dialogue.order(pb.Close(job="a")) == ["send checkpoint 0.0", "drop job"], "none is wanted"


def test_the_end_waits_for_an_update_and_for_the_checkpoint_before() -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.chunk(0, 1, 1)
    dialogue.chunk(1, 1, 1)
    dialogue.staged()
    assert dialogue.order(CLOSE) == []
    dialogue.updated(1, [0, 1])
    assert dialogue.chunk(0, 1, 2) == [], "the job takes no other step"
    assert dialogue.saved(1, 1) == [
        "send checkpoint 1.1", "snapshot 1.2", "send checkpoint 1.1", "drop job"
    ]  # fmt: skip
    assert dialogue.save_failed(1, 2) == ["send no checkpoint 1.2: disk full"]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_is_opened_while_it_closes_is_loaded_from_its_last_checkpoint(is_cancelled: bool) -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.step(1, 1)
    assert dialogue.order(CLOSE) == dialogue.open(generation=1) == []
    assert not is_cancelled or dialogue.order(CLOSE) == []
    assert dialogue.saved(1, 1)[-1] == "drop job"
    if is_cancelled:
        assert dialogue.saved(1, 2) == ["send checkpoint 1.2"]
        assert not dialogue.core.has_open("a")
    else:
        assert dialogue.saved(1, 2) == ["send checkpoint 1.2", "load a"]
        assert dialogue.loaded(generation=1, step=2)[:2] == [
            "save generation 2",
            "send training 2.2, missing #0 #1",
        ]


def test_a_measurement_that_comes_late_commits_nothing() -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.step(1, 1)
    dialogue.chunk(0, 1, 2)
    dialogue.chunk(1, 1, 2)
    assert dialogue.order(CLOSE) == []
    assert dialogue.staged() == []
    assert dialogue.saved(1, 1)[1] == "snapshot 1.2"


@pytest.mark.parametrize("loss", ["tensors", "disk"])
def test_the_end_waits_for_nothing_that_does_not_come(loss: str) -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.step(1, 0)
    dialogue.step(1, 1)
    dialogue.order(CLOSE)
    event = ev.TensorsLost() if loss == "tensors" else ev.OperationFailed("a", "broken")
    assert dialogue.give(event)[-1] == "drop job"


# ---- a job that stops for now ----


SAVE = pb.SaveCheckpoint(job="a")


def test_a_job_whose_weights_are_saved_stays_open() -> None:
    dialogue = training(plan=SELDOM)
    dialogue.step(1, 0)
    dialogue.chunk(0, 1, 1)
    assert dialogue.order(SAVE) == ["snapshot 1.1"]
    assert dialogue.order(SAVE) == [], "it is being written"
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1"]
    assert dialogue.order(SAVE) == [], "it is on disk"
    assert dialogue.open(generation=1) == ["send training 1.1, missing #1", "send checkpoint 1.1"], "no load"
    assert dialogue.chunk(1, 1, 1) == ["stage #1"]


def test_a_save_waits_for_an_update_and_for_another_jobs_checkpoint() -> None:
    dialogue = training(plan=SELDOM, jobs="ab")
    dialogue.step(1, 0, job="b")
    assert dialogue.order(pb.SaveCheckpoint(job="b")) == ["b: snapshot 1.1"]
    dialogue.chunk(0)
    dialogue.chunk(1)
    dialogue.staged()
    assert dialogue.order(SAVE) == []
    assert dialogue.saved(1, 1, job="b") == ["b: send checkpoint 1.1"]
    assert dialogue.updated(0) == ["snapshot 1.1"]


def test_a_job_that_is_closed_while_its_weights_are_saved_leaves_at_once() -> None:
    dialogue = training(plan=SELDOM)
    dialogue.step(1, 0)
    dialogue.order(SAVE)
    assert dialogue.order(CLOSE) == ["send checkpoint 0.0", "drop job"]
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1"]


def test_a_save_that_fails_costs_nothing() -> None:
    dialogue = training(plan=SELDOM)
    dialogue.step(1, 0)
    dialogue.order(SAVE)
    assert dialogue.save_failed(1, 1) == ["send no checkpoint 1.1: disk full"]
    assert dialogue.order(CLOSE)[0] == "snapshot 1.1", "it is tried again at the end"


def test_there_is_nothing_to_save_of_a_job_without_steps() -> None:
    dialogue = Dialogue()
    assert dialogue.order(SAVE) == []
    dialogue.open()
    assert dialogue.order(SAVE) == [], "it loads"
    dialogue.loaded()
    assert dialogue.order(SAVE) == [], "it has no weights"
    assert training().order(SAVE) == []
