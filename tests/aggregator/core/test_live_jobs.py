"""Dialogues about the queue of jobs."""

from __future__ import annotations

from aggregator.core import events as ev
from protos.jobs_pb2 import CANCELLED, PAUSED, QUEUED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training


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
        "optimizer <- Open",
        "1 <- join",
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
    assert "b" not in dialogue.core.jobs.records
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
    assert dialogue.running == "b"


def test_a_queued_job_is_paused_and_keeps_its_place() -> None:
    dialogue = training(1)
    for job in "bcd":
        dialogue.submit(job)
    assert dialogue.pause("b") == [], "that is on disk already"
    assert dialogue.core.jobs.records["b"].job.state == PAUSED
    dialogue.cancel("a")
    assert dialogue.running == "c"
    dialogue.resume("b")
    assert dialogue.running == "b", "it is older than c"
    dialogue.later(1.25, 1)
    assert list(dialogue.core.assignments.waits) == ["c", "d"]
    assert dialogue.pause("no such job") == []
    assert dialogue.resume("no such job") == []


def test_a_paused_job_alone_leaves_the_cluster_idle() -> None:
    dialogue = training(1)
    dialogue.submit("b")
    dialogue.pause("b")
    dialogue.cancel("a")
    assert dialogue.running == "" and dialogue.describe_wait() == ""
    assert dialogue.resume("b") == ["save b running", "optimizer <- Open", "1 <- join"]


def test_a_higher_priority_preempts_and_others_follow_by_priority_and_age() -> None:
    dialogue = training(1)
    for job in "bcde":
        dialogue.submit(job)
    dialogue.give(ev.PriorityRequested("b", -1))
    dialogue.give(ev.PriorityRequested("e", 5))
    assert dialogue.core.members[1].job == "a", "its worker leaves at the COMMIT"
    lines = dialogue.commits(1, 0)
    assert "1 <- leave: its workers serve jobs that come first" in lines and "save a queued" in lines
    assert "optimizer <- SaveCheckpoint" in lines
    assert dialogue.core.members[1].job == "e"
    dialogue.later(1.25, 1)
    assert list(dialogue.core.assignments.waits) == ["a", "c", "d", "b"]
    order = []
    for _ in range(5):
        order.append(dialogue.running)
        dialogue.cancel(order[-1])
    assert order == ["e", "a", "c", "d", "b"]


def test_a_job_that_was_about_to_be_paused_is_paused_by_the_next_aggregator() -> None:
    before = training(1)
    before.submit("b")
    record = before.core.jobs.records["a"]
    record.job.pausing = True
    dialogue = Dialogue(epoch=4, records=[record, before.core.jobs.records["b"]])
    assert dialogue.give(ev.Ticked()) == ["save a paused", "save b running"]
    paused = dialogue.saved["a"].job
    assert (paused.detail, paused.pausing, paused.ended_seconds) == ("paused by request", False, 0)
