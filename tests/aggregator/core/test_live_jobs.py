"""Dialogues about the queue of jobs."""

from __future__ import annotations

from aggregator.core import events as ev
from protos.jobs_pb2 import CANCELLED, QUEUED, RUNNING
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
    assert dialogue.core.status(dialogue.now).running_job == "b"
