"""Dialogues about `min_workers` and failed leases. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts


def test_a_job_begins_with_min_workers() -> None:
    dialogue = Dialogue()
    dialogue.submit(min_workers=2)
    dialogue.optimizer()
    dialogue.stands(0, 0, state=pb.OptimizerStatus.EMPTY)
    assert "1 <- initialise" not in dialogue.joins(1)
    wait = dialogue.describe_wait(dialogue.now + 3)
    assert has_facts(wait, "1 of the 2 ... min_workers ... 3 s")
    dialogue.hello(2)
    assert has_facts(dialogue.describe_wait(), "w2 (connected) ... 0 s")
    dialogue.give(ev.DataStreamOpened(2))
    assert dialogue.ready(2)[-1] == "1 <- initialise"
    assert has_facts(dialogue.notes[-1], "2 workers ... 0 s")


def test_below_the_quorum_running_leases_continue_without_new_ones() -> None:
    dialogue = training(1, 2, min_workers=2)
    lost = dialogue.give(ev.WorkerLost(2, "gone"))
    assert not any("train" in line for line in lost)
    assert has_facts(dialogue.notes[-1], "1 of the 2 ... min_workers ... w2 (gone)")
    published = len(dialogue.notes)
    assert dialogue.computed(1) == [], "idle, but nothing is granted"
    assert "forward #0" not in dialogue.chunk(1, 1, 0, 0)
    assert dialogue.later(5.0, 1) == []
    assert len(dialogue.notes) == published, "published once"
    waiting = dialogue.status().waiting
    assert has_facts(waiting, "1 of the 2 ... min_workers ... w2 (gone) ... 5 s")
    assert any("1 <- train 2-3 of 1.0" in line for line in dialogue.joins(3)), "anyone will do"
    assert has_facts(dialogue.notes[-1], "2 workers ... 5 s")


def test_a_shortage_is_over_as_soon_as_enough_workers_are_there() -> None:
    dialogue = training(1, 2, min_workers=2)
    dialogue.give(ev.WorkerLost(2, "gone"))
    run = dialogue.run
    assert run is not None and run.quorum.describe_shortage(dialogue.now)
    run.members[3] = run.members[1]  # as a spare that comes amid an input, before the quorum is asked
    assert run.quorum.describe_shortage(dialogue.now) is None


def test_no_step_begins_below_min_workers() -> None:
    dialogue = training(1, 2, min_workers=2)
    for session in (1, 2):
        dialogue.computed(session)
        dialogue.chunk(session, 1, 0, 0)
    dialogue.give(ev.WorkerLost(2, "gone"))
    assert not any("train" in line for line in dialogue.commits(1, 0))
    dialogue.weights(1, 1, 0)
    assert not any("train" in line for line in dialogue.weights_loaded(1, 1, 1))
    assert any(line.endswith("of 1.1") for line in dialogue.joins(2, holds=(1, 1)))


def test_min_workers_may_exceed_the_micro_batches() -> None:
    dialogue = training(1, 2, 3, micro_batches=1, min_workers=3)
    assert set(dialogue.leases) == {1}, "the others stand by"


# ---- leases that fail ----


def fails(dialogue: Dialogue, session: int, reason: str = "out of memory") -> list[str]:
    return dialogue.says(session, pb.Failure(job="a", lease=dialogue.leases[session], reason=reason))


def test_a_failed_lease_is_given_out_again_and_its_worker_stays() -> None:
    dialogue = training(1)
    assert fails(dialogue, 1) == ["1 <- window 1", "1 <- train 0-3 of 1.0"]
    assert has_facts(dialogue.notes[-1], "w1 ... step 0 ... out of memory")
    assert dialogue.job().state == RUNNING
    dialogue.computed(1)
    assert "forward #0" in dialogue.chunk(1, 1, 0, 0)


def test_others_take_over_what_failed() -> None:
    dialogue = training(1, 2)
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0)
    assert fails(dialogue, 2) == [
        "1 <- window 1",
        "1 <- train 2 of 1.0",
        "2 <- window 1",
        "2 <- train 3 of 1.0",
    ]


def test_a_worker_with_three_failed_leases_in_a_row_is_refused() -> None:
    dialogue = training(1, 2)
    for _ in range(2):
        fails(dialogue, 2)
    assert dialogue.core.members[2].able
    reason = "3 leases in a row failed, the last with: out of memory"
    assert f"2 <- leave: {reason}" in fails(dialogue, 2)
    member = dialogue.status().workers[1]
    assert (member.state, member.detail) == ("refused", reason)
    assert dialogue.job().state == RUNNING


def test_a_lease_that_succeeds_ends_the_row() -> None:
    dialogue = training(1)
    fails(dialogue, 1)
    fails(dialogue, 1)
    dialogue.computed(1)
    assert dialogue.core.members[1].failures == 0


def test_a_job_whose_only_worker_fails_for_good_fails_with_its_reason() -> None:
    dialogue = training(1)
    for _ in range(3):
        fails(dialogue, 1)
    assert dialogue.job().state == FAILED
    assert has_facts(dialogue.job().detail, "w1 ... 3 leases ... out of memory")


def test_a_failure_of_a_void_lease_is_ignored() -> None:
    dialogue = training(1, 2)
    assert dialogue.says(1, pb.Failure(job="a", lease=dialogue.leases[2], reason="not mine")) == []
    assert dialogue.says(1, pb.Failure(job="a", lease=77, reason="unknown")) == []
    assert dialogue.core.members[1].failures == 0


@pytest.mark.parametrize("phase", ["initialise", "evaluate"])
def test_leases_of_other_phases_are_given_out_again_too(phase: str) -> None:
    if phase == "initialise":
        dialogue = Dialogue()
        dialogue.submit()
        dialogue.optimizer()
        dialogue.stands(0, 0, state=pb.OptimizerStatus.EMPTY)
        dialogue.joins(1)
        assert fails(dialogue, 1) == ["1 <- initialise"]
    else:
        dialogue = training(1, step=4)
        assert fails(dialogue, 1) == ["1 <- evaluate 0 of 1.4"]
