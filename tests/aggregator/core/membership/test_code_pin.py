"""The code that a job is pinned to: who waits, when it changes, what the record says."""

from __future__ import annotations

from aggregator.core import events as ev
from aggregator.core.cluster_status import find_waits
from aggregator.core.setting_aside import PROBATION_SECONDS
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue

OLD, NEW, NEWER = ("a" * 64, "b" * 64, "c" * 64)


def pinned(**plan: bool) -> Dialogue:
    """Return a job at step 2 of generation 1 whose one worker has the old code; its checkpoint is of step 1."""
    dialogue = Dialogue()
    dialogue.submit(**plan)
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1, code=OLD)
    dialogue.stands(1, 2)
    dialogue.checkpoint(1, 1)
    return dialogue


def arrives(dialogue: Dialogue, session: int, code: str, **facts: str) -> list[str]:
    """Connect a worker of some code."""
    dialogue.hello(session)
    dialogue.give(ev.DataStreamOpened(session))
    return dialogue.ready(session, code=code, **facts)


def wait(dialogue: Dialogue, *sessions: int) -> list[str]:
    """Let the time pass after which the code changes; a save by which an idle start no longer counts comes before."""
    assert dialogue.goes_by(PROBATION_SECONDS + 3, *sessions) in ([], ["save a running"])
    return dialogue.goes_by(STANDARD_TIMEOUTS.comeback + 10, *sessions)


def test_a_worker_of_other_code_waits_and_status_says_why() -> None:
    dialogue = pinned()
    assert arrives(dialogue, 2, NEW) == ["save a running"]
    member = next(each for each in dialogue.status().workers if each.name == "w2")
    assert member.state == "waiting"
    assert (
        "its code is bbbbbbbbbbbb, the job's is aaaaaaaaaaaa" in member.detail and len(member.detail) <= 300
    )
    assert wait(dialogue, 1, 2) == [], "as long as a worker of the job's code is there"
    assert dialogue.job().state == RUNNING


def test_the_job_goes_on_with_new_code_at_its_newest_checkpoint_in_a_new_generation() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert wait(dialogue, 2) == ["save a running", "drop all", "optimizer <- Open"]
    (change,) = dialogue.saved["a"].job.code_changes
    assert (change.before, change.after, change.generation, change.step) == (OLD, NEW, 1, 1)
    assert dialogue.saved["a"].job.claims[0].fingerprint["code"] == NEW
    assert "code aaaaaaaaaaaa -> bbbbbbbbbbbb" in dialogue.notes[-2]
    assert dialogue.commits(1, 2) == [], "of the generation that is void"
    assert dialogue.stands(2, 1) == ["save a running", "drop all", "optimizer <- SendWeights 2.1"]
    assert dialogue.weights(2, 1, 0) == ["store weights #0"]
    assert "2 <- train 0-3 of 2.1" in dialogue.weights_loaded(2, 2, 1)
    assert arrives(dialogue, 3, OLD) == ["save a running"], "now the old code waits"


def test_the_optimizer_is_told_which_checkpoints_are_void() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    wait(dialogue, 2)
    (effect,) = dialogue.core.handle(ev.OptimizerConnected("opt"), dialogue.clock)
    assert isinstance(effect, ev.ToOptimizer) and isinstance(effect.body, pb.Open)
    assert [(each.generation, each.step) for each in effect.body.void] == [(1, 1)]


def test_a_late_status_of_the_old_generation_is_not_continued() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    wait(dialogue, 2)
    assert dialogue.stands(1, 2) == ["optimizer <- Open"]


def test_a_worker_of_the_old_code_that_comes_back_in_time_prevents_the_change() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback / 2, 2)
    arrives(dialogue, 3, OLD)
    assert wait(dialogue, 2, 3) == [] and not dialogue.job().code_changes
    dialogue.give(ev.WorkerLost(3, "gone"))
    assert "optimizer <- Open" in wait(dialogue, 2), "the wait began again"


def test_the_code_of_most_workers_is_taken() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEWER)
    arrives(dialogue, 3, NEW)
    arrives(dialogue, 4, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    wait(dialogue, 2, 3, 4)
    assert dialogue.saved["a"].job.claims[0].fingerprint["code"] == NEW
    states = {each.name: each.state for each in dialogue.status().workers}
    assert states == {"w2": "waiting", "w3": "ready", "w4": "ready"}


def test_a_job_from_before_code_was_pinned_changes_to_it() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)  # without a code
    dialogue.stands(1, 0)
    dialogue.checkpoint(1, 0)
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert "optimizer <- Open" in wait(dialogue, 2)
    assert "code unknown -> bbbbbbbbbbbb" in dialogue.notes[-2]


def test_no_change_before_there_is_a_checkpoint() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    arrives(dialogue, 1, OLD)
    dialogue.stands(1, 0)
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert wait(dialogue, 2) == []
    dialogue.checkpoint(1, 0)
    assert "optimizer <- Open" in dialogue.goes_by(10, 2)


def test_without_weights_the_new_code_makes_them() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    arrives(dialogue, 1, OLD)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert wait(dialogue, 2) == ["save a running", "2 <- initialise"]


def test_exact_false_accepts_other_code() -> None:
    dialogue = pinned(exact=False)
    arrives(dialogue, 2, NEW)
    assert next(each for each in dialogue.status().workers if each.name == "w2").state == "ready"


def test_a_worker_that_differs_in_more_than_its_code_is_refused() -> None:
    dialogue = pinned()
    lines = arrives(dialogue, 2, NEW, blas="Haswell")
    assert len(lines) == 2 and "leave: fingerprint differs: blas" in lines[1]


def test_after_a_restart_of_the_aggregator_the_change_holds() -> None:
    dialogue = pinned()
    arrives(dialogue, 2, NEW)
    dialogue.give(ev.WorkerLost(1, "gone"))
    wait(dialogue, 2)
    later = Dialogue(epoch=4, records=[dialogue.saved["a"]])
    later.now = dialogue.now
    later.optimizer()
    arrives(later, 2, NEW)
    assert later.stands(1, 2) == ["optimizer <- Open"], "killed before the optimizer heard of the change"
    later.stands(2, 1)
    assert (later.job().generation, later.job().step) == (2, 1)


# ---- builds that hang ----


def test_a_worker_that_builds_is_named_among_the_waits() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.later(7.0, 1)
    waits = [
        (each.peer, each.what, each.seconds)
        for each in find_waits(dialogue.core, dialogue.now)
        if each.role == "worker"
    ]
    assert waits == [("w1", "to build the job", 7.0)]


def test_a_build_that_takes_too_long_makes_the_worker_unfit_until_it_is_ready() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1)
    (member,) = dialogue.status().workers
    assert member.state == "unfit" and "building the job for more than 600 s" in member.detail
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1)
    (member,) = dialogue.status().workers
    run = dialogue.run
    assert run is not None and member.state == "ready" and not run.job_members.waits(dialogue.now)


def test_a_job_whose_builds_all_hang_fails_in_the_end() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.goes_by(STANDARD_TIMEOUTS.stall + STANDARD_TIMEOUTS.unfit + 20, 1)
    assert dialogue.job().state == FAILED and "building the job" in dialogue.job().detail
