"""Tests of jobs that take the aggregator down: started again, after a while with a delay, and set aside at last."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator.core import events as ev
from aggregator.core.job_report import Record
from aggregator.core.setting_aside import (
    MOST_CRASHES,
    MOST_STARTS,
    PROBATION_SECONDS,
    SUSPECT_STARTS,
    note_crash,
)
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, Job
from services.errors import Refusal
from services.protocol.plan import JobPlan
from tests.support.dialogues.aggregator import Dialogue, training

PLAN = JobPlan(steps=4, micro_batches=4)


def restarted(records: Iterable[Record], epoch: int = 4, lived_seconds: float = 0.0) -> Dialogue:
    """Return the next aggregator, with the records that the previous one has saved."""
    dialogue = Dialogue(epoch=epoch, records=list(records))
    dialogue.give(ev.Ticked())
    dialogue.goes_by(lived_seconds)
    return dialogue


def saved(dialogue: Dialogue, *jobs: str) -> list[Record]:
    """Return the jobs as the dialogue has saved them last."""
    return [dialogue.saved[job] for job in jobs]


def test_a_start_is_saved_before_the_optimizer_hears_of_the_job() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    lines = dialogue.submit()
    assert lines.index("save a running") < lines.index("optimizer <- Open")
    assert dialogue.saved["a"].job.starts == 1


def test_a_job_that_kills_every_aggregator_is_set_aside_and_the_next_one_runs() -> None:
    dialogue = Dialogue()
    dialogue.submit("a")
    dialogue.submit("b")
    records = [*saved(dialogue, "a"), Record(dialogue.job("b"), "{}", PLAN)]
    for start in range(2, MOST_STARTS + 1):
        lived_seconds = PROBATION_SECONDS + 1 if start > SUSPECT_STARTS else 0.0
        dialogue = restarted(records, epoch=3 + start, lived_seconds=lived_seconds)
        assert dialogue.saved["a"].job.starts == start
        assert "a" in dialogue.core.runs
        records[0] = dialogue.saved["a"]
    dialogue = restarted(records, epoch=20, lived_seconds=PROBATION_SECONDS + 1)
    ended = dialogue.saved["a"].job
    assert ended.state == FAILED and ended.ended_seconds
    assert f"the aggregator died {MOST_STARTS} times soon after it started this job" in ended.detail
    assert "b" in dialogue.core.runs


def test_a_suspect_job_waits_until_the_aggregator_has_lived_for_a_while() -> None:
    job = Job(id="a", state=RUNNING, starts=SUSPECT_STARTS)
    dialogue = restarted([Record(job, "{}", PLAN)])
    assert dialogue.run is None
    assert "job a starts in 10 s: the aggregator died 3 times" in dialogue.status().waiting
    dialogue.goes_by(PROBATION_SECONDS - 1)
    assert dialogue.run is None and not dialogue.saved, "killed now, it would not count"
    dialogue.goes_by(2)
    assert dialogue.run is not None
    assert dialogue.saved["a"].job.starts == SUSPECT_STARTS + 1


def test_a_suspect_job_can_be_cancelled_while_it_waits() -> None:
    dialogue = restarted(
        [
            Record(Job(id="a", state=RUNNING, starts=SUSPECT_STARTS), "{}", PLAN),
            Record(Job(id="b", state=QUEUED), "{}", PLAN),
        ]
    )
    dialogue.give(ev.CancelRequested("a"))
    assert dialogue.run is not None and dialogue.run.job.id == "b"


def test_a_step_clears_the_starts_at_once_and_is_saved() -> None:
    dialogue = training(1)
    dialogue.job().starts = 5
    assert dialogue.commits(1, 0)[0] == "save a running"
    assert dialogue.saved["a"].job.starts == 0
    assert "save a running" not in dialogue.commits(1, 1), "one write a start, not one a step"


def test_a_new_checkpoint_clears_the_starts_and_a_known_one_does_not() -> None:
    dialogue = training(1)
    dialogue.checkpoint(1, 0)
    dialogue.job().starts = 5
    dialogue.checkpoint(1, 0)
    assert dialogue.saved["a"].job.starts == 5, "the optimizer names it again at each start"
    dialogue.checkpoint(1, 1)
    assert dialogue.saved["a"].job.starts == 0


def test_a_deliberate_stop_takes_the_start_back() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    for epoch in range(4, 4 + 2 * MOST_STARTS):
        assert dialogue.give(ev.Stopping()) == ["save a running"]
        assert dialogue.saved["a"].job.starts == 0
        dialogue = restarted(saved(dialogue, "a"), epoch)
        assert dialogue.run is not None


def test_crashes_at_the_same_steps_fail_the_job_with_the_error() -> None:
    job = Job(id="a", state=RUNNING, step=7)
    for _ in range(MOST_CRASHES):
        assert restarted([Record(job, "{}", PLAN)]).run is not None
        note_crash(job, "internal error, IndexError at lease_book.py:1: list index out of range", 7)
    dialogue = restarted([Record(job, "{}", PLAN)])
    detail = dialogue.saved["a"].job.detail
    assert detail.startswith(
        f"the aggregator failed {MOST_CRASHES} times while it ran this job: internal error"
    )
    assert detail.endswith("; see its log") and len(detail) <= 300


def test_a_crash_at_a_later_step_is_counted_from_one() -> None:
    job = Job(id="a", state=RUNNING)
    counts = []
    for step in (0, 0, 3, 2, 4, 4):
        note_crash(job, "internal error", step)
        counts.append((job.crash.count, job.crash.step))
    assert counts == [(1, 0), (2, 0), (1, 3), (2, 3), (1, 4), (2, 4)]


def test_crashes_count_until_the_job_is_past_their_step() -> None:
    dialogue = training(1, steps=100)
    note_crash(dialogue.job(), "internal error", 2)
    dialogue.commits(1, 0)
    dialogue.commits(1, 1)
    assert dialogue.job().crash.count == 1, "it may crash in the same step again"
    dialogue.commits(1, 2)
    assert not dialogue.saved["a"].job.HasField("crash")


def test_a_stored_job_that_cannot_be_used_fails_alone() -> None:
    refusal = Refusal("the stored job can't be used: steps: 0 given, expected at least 1")
    dialogue = restarted(
        [
            Record(Job(id="a", state=RUNNING), "{}", refusal),
            Record(Job(id="b", state=QUEUED), "{}", PLAN),
        ]
    )
    assert (dialogue.saved["a"].job.state, dialogue.saved["a"].job.detail) == (FAILED, refusal.reason)
    assert dialogue.run is not None and dialogue.run.job.id == "b"
    assert dialogue.saved["a"].job.state != CANCELLED
