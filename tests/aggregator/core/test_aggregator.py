"""Dialogues about connecting workers and the queue. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, QUEUED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

# ---- who is let in ----


def test_a_second_worker_of_one_name_is_refused() -> None:
    dialogue = Dialogue()
    assert dialogue.hello(1, "box", incarnation="one") == ["1 <- welcome"]
    dialogue.now += 2.0
    (line,) = dialogue.hello(2, "box", incarnation="two")
    assert line.startswith("2 closed: ")
    assert has_facts(line, "box ... 2.0 s ... --name")
    dialogue.now += 20.0
    assert dialogue.hello(3, "box", incarnation="two")[-1] == "3 <- welcome", (
        "the first one is silent for long"
    )


def test_a_worker_that_comes_back_takes_the_place_of_its_old_connection() -> None:
    dialogue = training(1)
    assert dialogue.hello(2, "w1", incarnation="i1") == [
        "1 closed: replaced by a newer connection of the same worker",
        "2 <- welcome",
        "2 <- join",
    ]
    assert dialogue.chunk(1, 1, 0, 0) == [], "the old session is closed"


def test_a_silent_worker_is_taken_for_dead() -> None:
    dialogue = training(1, 2)
    dialogue.computed(1)
    assert dialogue.later(16.0, 1) == [
        "2 closed: silent for 16.0 s",
        "1 <- window 1",
        "1 <- train 2-3 of 1.0",
    ]


def test_a_dead_worker_is_seen_within_three_heartbeats() -> None:
    """Check a heartbeat of 5 s, with a tick every quarter of it and a worker that dies at 100 s."""
    dialogue = training(1, 2)
    while not any("2 closed" in line for line in dialogue.later(1.25, 1)):
        assert dialogue.now < 115.0
    assert 112.5 < dialogue.now < 115.0, "and not before it had time for five signs of life"


def test_messages_sent_while_the_aggregator_was_frozen_are_in_time() -> None:
    dialogue = training(1, 2)
    for _ in range(3):
        dialogue.later(1.25, 1, 2)
    assert dialogue.later(60.0) == [], (
        "its first look after a pause: all words of the workers wait to be read"
    )
    assert dialogue.later(1.25, 1) == []
    for _ in range(9):
        assert dialogue.later(1.25, 1) == []
    assert dialogue.later(1.25, 1)[0].startswith("2 closed: silent for 13."), (
        "the dead one is seen all the same"
    )


def test_the_first_message_after_a_pause_excuses_all_workers() -> None:
    dialogue = training(1, 2)
    dialogue.later(1.25, 1, 2)
    assert dialogue.later(60.0, 1) == [], "the words of one are read before the first look"


def test_messages_for_another_epoch_are_ignored() -> None:
    dialogue = training(1)
    computed = pb.Computed(job="a", lease=dialogue.leases[1], seconds=1.0)
    dialogue.says(1, computed, epoch=2)
    assert dialogue.core.run is not None and dialogue.core.run.lease_book.step_sum is not None
    assert dialogue.core.run.lease_book.step_sum.is_busy(1)


# ---- the queue ----


def test_jobs_run_one_after_the_other_in_order() -> None:
    dialogue = training(1)
    assert dialogue.submit("b") == dialogue.submit("c") == [], "they are on disk already"
    lines = dialogue.cancel("a")
    assert lines == [
        "save a cancelled",
        "1 <- leave: cancelled by request",
        "optimizer <- Close",
        "drop all",
        "save b running",
        "1 <- join",
        "optimizer <- Open",
    ]
    assert [dialogue.job(job).state for job in "abc"] == [CANCELLED, RUNNING, QUEUED]
    assert dialogue.chunk(1, 1, 0, 0) == [], "of the job that is over"


def test_the_record_of_a_job_that_ended_names_what_was_written_then() -> None:
    dialogue = training(1)
    dialogue.submit("b")
    dialogue.checkpoint(1, 0)
    dialogue.cancel("a")
    ended_seconds = dialogue.job().ended_seconds
    dialogue.now += 1
    assert dialogue.checkpoint(1, 2) == ["save a cancelled"]
    job = dialogue.saved["a"].job
    assert (job.checkpoint, job.checkpoint_step, job.model_sha256) == ("a/2", 2, "sha2")
    assert (job.detail, job.ended_seconds) == ("cancelled by request", ended_seconds)
    assert dialogue.notes[-1] == "checkpoint of step 2: a/2"
    assert dialogue.checkpoint(1, 2) == dialogue.checkpoint(1, 1) == [], "no newer one"
    assert dialogue.checkpoint(1, 3, "no such job") == []
    dialogue.submit("c")
    assert dialogue.checkpoint(1, 3, "c") == [], "it has not begun"


def test_a_queued_job_is_cancelled_where_it_waits() -> None:
    dialogue = training(1)
    dialogue.submit("b")
    assert dialogue.cancel("b") == [], "that is on disk already"
    assert dialogue.notes[-1] == "cancelled"
    assert "b" not in dialogue.core.records
    assert dialogue.cancel("b") == [], "it has ended"
    assert dialogue.cancel("no such job") == []
    assert dialogue.job("a").state == RUNNING


def test_a_restart_resumes_the_running_job_before_queued_ones() -> None:
    before = Dialogue()
    before.submit("a")
    before.submit("b")
    before.cancel("a")
    before.submit("c")
    dialogue = Dialogue(epoch=4, records=[before.saved[job] for job in "acb"])
    assert dialogue.give(ev.Ticked()) == ["save b running"]
    assert dialogue.core.status(dialogue.now).running_job == "b"


def test_each_stage_names_its_wait() -> None:
    dialogue = Dialogue()
    assert dialogue.core.describe_wait(dialogue.now) is None
    dialogue.submit()
    assert dialogue.core.describe_wait(dialogue.now) == "waits for the optimizer: not connected yet"
    dialogue.optimizer()
    assert dialogue.core.describe_wait(dialogue.now) == "waits for the optimizer's status"
    dialogue.stands(1, 0)
    assert dialogue.core.describe_wait(dialogue.now) == "waits for a worker to connect"
    dialogue.hello(1)
    assert dialogue.core.describe_wait(dialogue.now) == "waits for workers to build the job: w1 (connected)"
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1)
    assert dialogue.core.describe_wait(dialogue.now) == "phase train, step 0; 0 of 1 workers have its weights"
    dialogue.give(ev.OptimizerLost("opt:1: refused"))
    assert dialogue.core.describe_wait(dialogue.now) == "waits for the optimizer: opt:1: refused"
