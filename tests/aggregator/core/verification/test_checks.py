"""Dialogues about verification. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

RIGHT, WRONG = 0x11, 0x22


def checked(*workers: int, micro_batches: int | None = None, **plan: Any) -> Dialogue:
    """Return workers in the first step of a job that checks every micro-batch, by default one per worker."""
    settings = {"micro_batches": micro_batches or len(workers), "verify_fraction": 1.0, "on_faulty": "go_on"}
    return training(*workers, **{**settings, **plan})


def report_first_faulty(dialogue: Dialogue) -> list[str]:
    """Report a wrong checksum of micro-batch 0 from worker 1, and right ones from the others."""
    leases = dict(dialogue.leases)
    lines = dialogue.computed(1, checksums={0: WRONG})
    for session in sorted(set(leases) - {1}):
        lines += dialogue.computed(session, lease=leases[session], checksums={session - 1: RIGHT})
    return lines


# ---- all is well ----


def test_a_step_waits_for_its_checks_and_loses_no_chunk() -> None:
    dialogue = checked(1, 2, chunks=2)
    assert dialogue.computed(1, checksums={0: RIGHT}) == [], "the other one is busy"
    for chunk in (1, 0):
        dialogue.chunk(1, 1, 0, chunk)
    assert dialogue.chunk(2, 1, 0, 1) == ["keep 1 #1", "merge 0 + 1 #1", "forward #1"]
    assert dialogue.chunk(2, 1, 0, 0) == ["keep 1 #0", "merge 0 + 1 #0"], "held back"
    assert dialogue.computed(2, checksums={1: RIGHT}) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    speeds = [each.micro_batches_per_second for each in dialogue.status().workers]
    assert dialogue.computed(1, seconds=1e-3, checksums={1: RIGHT}) == ["check passed"]
    assert dialogue.computed(2, seconds=1e-3, checksums={0: RIGHT}) == ["check passed", "forward #0"]
    assert [each.micro_batches_per_second for each in dialogue.status().workers] == speeds
    assert "drop all" in dialogue.commits(1, 0)


def test_nothing_is_asked_for_unless_the_job_wants_it() -> None:
    dialogue = training(1, 2)
    effects = dialogue.core.handle(ev.FromOptimizer(pb.Commit(job="a", generation=1, step=0)), dialogue.clock)
    leases = [
        each.body for each in effects if isinstance(each, ev.ToWorker) and isinstance(each.body, pb.Lease)
    ]
    assert [list(lease.checksums) for lease in leases] == [[], []]


def test_leases_name_what_is_checked_of_their_nodes() -> None:
    dialogue = checked(1, 2, micro_batches=4)
    effects = dialogue.core.handle(ev.FromOptimizer(pb.Commit(job="a", generation=1, step=0)), dialogue.clock)
    leases = [
        each.body for each in effects if isinstance(each, ev.ToWorker) and isinstance(each.body, pb.Lease)
    ]
    assert [list(lease.checksums) for lease in leases] == [[0, 1], [2, 3]]


def test_repeated_messages_are_no_second_opinions() -> None:
    dialogue = checked(1)
    lease = dialogue.leases[1]
    assert dialogue.computed(1, checksums={0: RIGHT}) == ["1 <- verify 0 of 1.0"]
    assert dialogue.computed(1, lease=lease, checksums={0: RIGHT}) == []
    again = dialogue.leases[1]
    assert dialogue.computed(1, checksums={0: RIGHT}) == ["check passed"]
    assert dialogue.computed(1, lease=again, checksums={0: WRONG}) == []
    assert dialogue.chunk(1, 1, 0, 0, lease=lease) == ["keep 0 #0", "forward #0"], (
        "the gate was open when it came"
    )


def test_unrequested_checksums_are_ignored() -> None:
    dialogue = checked(1, 2)
    assert dialogue.computed(1, checksums={0: RIGHT, 1: WRONG, 9: WRONG}) == []
    assert dialogue.computed(2, checksums={1: RIGHT}) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    assert dialogue.computed(1, checksums={0: WRONG, 1: RIGHT}) == ["check passed"]
    dialogue = training(1, 2)
    assert dialogue.computed(1, checksums={0: RIGHT}) == []
    assert dialogue.says(1, pb.Computed(job="a", lease=999, checksums=[pb.Checksum(crc32c=1)])) == []


@pytest.mark.parametrize(("again", "outcome"), [(RIGHT, "check passed"), (WRONG, "1 <- verify 1 of 1.0")])
def test_what_is_computed_again_after_its_check_is_checked_again(again: int, outcome: str) -> None:
    dialogue = checked(1, 2)
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 0)
        dialogue.computed(session, checksums={session - 1: RIGHT})
    dialogue.computed(1, checksums={1: RIGHT})
    assert dialogue.computed(2, checksums={0: RIGHT}) == ["check passed", "forward #0"]
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.give(ev.OptimizerLost("broke"))
    dialogue.optimizer()
    assert "1 <- train 1 of 1.0" in dialogue.stands(1, 0), "the sum is lost"
    assert not any("forward" in line for line in dialogue.chunk(1, 1, 0, 0)), "nothing is passed on unchecked"
    assert dialogue.computed(1, checksums={1: again})[0] == outcome


def test_what_is_computed_again_without_a_checksum_passes_no_check() -> None:
    dialogue = checked(1, 2)
    for session in (1, 2):
        dialogue.computed(session, checksums={session - 1: RIGHT})
    dialogue.computed(1, checksums={1: RIGHT})
    dialogue.computed(2, checksums={0: RIGHT})
    assert "1 <- train 1 of 1.0" in dialogue.give(ev.WorkerLost(2, "gone"))
    assert dialogue.computed(1) == ["check abandoned"]


# ---- a worker with faulty hardware ----


def test_a_third_worker_decides_which_one_is_faulty_and_the_step_starts_over() -> None:
    dialogue = checked(1, 2, 3)
    assert report_first_faulty(dialogue) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    assert dialogue.computed(2, checksums={0: RIGHT}) == ["3 <- verify 0 of 1.0", "2 <- verify 2 of 1.0"]
    lines = dialogue.computed(3, checksums={0: RIGHT})
    leave = lines.pop(3)
    assert lines == ["check faulty", "drop all", "save a running", "optimizer <- StartOver"]
    assert leave.startswith("1 <- leave: ")
    checksums = "w1 0x00000022 ... w2 0x00000011 ... w3 0x00000011"
    assert has_facts(leave, f"step 1 ... micro-batch 0 ... {checksums} ... --name")
    assert dialogue.chunk(2, 1, 0, 0) == [], "the sum of this step is void"
    assert has_facts(dialogue.describe_wait(), "optimizer ... step 0")
    dialogue.goes_by(1.0, 2, 3)
    assert [(each.role, each.what) for each in dialogue.status().waits] == [
        ("optimizer", "to restart the step")
    ]
    assert [(each.worker, each.generation, each.step) for each in dialogue.job().excluded] == [("w1", 1, 0)]
    assert any(has_facts(note, f"w1 ... {checksums}") for note in dialogue.notes)
    lines = dialogue.stands(2, 0)
    assert [line for line in lines if "train" in line] == ["2 <- train 0-1 of 2.0", "3 <- train 2 of 2.0"]
    assert dialogue.job().generation == 2


@pytest.mark.parametrize(("again", "outcome"), [(RIGHT, "check faulty"), (WRONG, "check undecided")])
def test_the_worker_that_contradicts_itself_is_faulty_of_two(again: int, outcome: str) -> None:
    dialogue = checked(1, 2)
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 0)
    report_first_faulty(dialogue)
    dialogue.computed(1, checksums={1: RIGHT})
    assert dialogue.computed(2, checksums={0: RIGHT}) == ["1 <- verify 0 of 1.0"], "each is asked once more"
    lines = dialogue.computed(1, checksums={0: again})
    if again == WRONG:
        assert lines == ["2 <- verify 0 of 1.0"]
        lines = dialogue.computed(2, checksums={0: RIGHT})
    assert lines[0] == outcome
    assert [each.worker for each in dialogue.job().excluded] == ["w1"] * (again == RIGHT)
    if again == WRONG:
        assert "undecided" in dialogue.notes[-1]
        assert lines[1:] == ["forward #0"], "the job goes on"


def test_a_single_worker_is_checked_against_itself_and_a_job_without_workers_fails() -> None:
    dialogue = checked(1)
    dialogue.computed(1, checksums={0: RIGHT})
    lines = dialogue.computed(1, checksums={0: WRONG})
    assert lines[0] == "check faulty"
    assert "optimizer <- Close" in lines
    assert dialogue.job().state == FAILED
    assert has_facts(dialogue.job().detail, "w1 ... faulty ... step 1")


def test_a_faulty_worker_is_refused_by_name_after_any_restart() -> None:
    before = checked(1, 2, 3)
    report_first_faulty(before)
    before.computed(2, checksums={0: RIGHT})
    before.computed(3, checksums={0: RIGHT})
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    lines = dialogue.hello(7, name="w1")
    assert lines[0] == "7 <- welcome" and lines[1].startswith("7 <- leave: faulty: step 1, micro-batch 0")
    assert dialogue.ready(7) == [], "nothing that it says of this job is heard"
    assert dialogue.hello(8, name="w2") == ["8 <- welcome", "8 <- join"]
    states = {each.name: (each.state, each.detail[:6]) for each in dialogue.status().workers}
    assert states == {"w1": ("refused", "faulty"), "w2": ("connected", "")}
    assert dialogue.job().state == RUNNING


def test_start_over_is_repeated_until_the_optimizer_has_done_it() -> None:
    dialogue = checked(1, 2, 3)
    report_first_faulty(dialogue)
    dialogue.computed(2, checksums={0: RIGHT})
    dialogue.computed(3, checksums={0: RIGHT})
    dialogue.give(ev.OptimizerLost("broke"))
    dialogue.optimizer()
    assert dialogue.stands(1, 0, missing=[]) == ["optimizer <- StartOver"]
    assert dialogue.stands(1, 0) == ["optimizer <- StartOver"]
    assert any("train" in line for line in dialogue.stands(2, 0))


def test_a_partial_sum_of_another_aggregator_is_not_trusted() -> None:
    before = checked(1, chunks=2, step=2)
    dialogue = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 2))
    assert dialogue.stands(1, 2, missing=[0]) == ["optimizer <- StartOver"]
    assert "1 <- train 0 of 2.2" in dialogue.stands(2, 2)


def test_a_complete_sum_of_another_aggregator_was_checked() -> None:
    before = checked(1, chunks=2, step=2)
    dialogue = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 2))
    assert "optimizer <- SendWeights 1.2" in dialogue.stands(1, 2, missing=[])


# ---- back to a checkpoint ----


def opened(effects: list[ev.Effect]) -> list[pb.Open]:
    """Return the Open messages to the optimizer."""
    orders = [each.body for each in effects if isinstance(each, ev.ToOptimizer)]
    return [body for body in orders if isinstance(body, pb.Open)]


def run_sound_step(dialogue: Dialogue, step: int, *, with_checksums: bool = True) -> None:
    """Run a step of three workers whose checks pass, or whose checkers send no checksums."""
    for session in (1, 2, 3):
        dialogue.computed(session, checksums={session - 1: RIGHT})
    for session, checks in ((2, 0), (1, 1), (3, 2)):
        dialogue.computed(
            session, lease=dialogue.leases[session], checksums={checks: RIGHT} if with_checksums else {}
        )
    dialogue.commits(1, step)
    dialogue.weights(1, step + 1, 0)
    for session in (1, 2, 3):
        dialogue.weights_loaded(session, 1, step + 1)


def exclude_first(dialogue: Dialogue) -> pb.Open:
    """Have two workers contradict worker 1, and return the Open messages that follow."""
    report_first_faulty(dialogue)
    dialogue.computed(2, checksums={0: RIGHT})
    computed = pb.Computed(job="a", lease=dialogue.leases[3], checksums=[pb.Checksum(crc32c=RIGHT)])
    (order,) = opened(dialogue.core.handle(ev.FromWorker(3, dialogue.core.epoch, computed), dialogue.clock))
    return order


def test_a_job_goes_back_to_a_checkpoint_without_faulty_gradients() -> None:
    dialogue = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    run_sound_step(dialogue, 4)
    run_sound_step(dialogue, 5, with_checksums=False)
    order = exclude_first(dialogue)
    assert list(order.void) == [pb.Void(generation=1, step=4)], (
        "in step 4 its gradient was right the last time"
    )
    assert "optimizer" in dialogue.describe_wait()
    lines = dialogue.stands(2, 3)
    assert [line for line in lines if "train" in line] == ["2 <- train 0-1 of 2.3", "3 <- train 2 of 2.3"]
    assert any(has_facts(note, "step 3 ... generation 2") for note in dialogue.notes)


def test_repeated_steps_are_not_trusted_for_earlier_checks() -> None:
    dialogue = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    run_sound_step(dialogue, 4)
    dialogue.give(ev.OptimizerLost("killed"))
    dialogue.optimizer()
    dialogue.stands(2, 3)
    dialogue.weights(2, 3, 0)
    for session in (1, 2, 3):
        dialogue.weights_loaded(session, 2, 3)
    assert list(exclude_first(dialogue).void) == [pb.Void(generation=2, step=3)], "not 4: that was before"


def test_the_next_aggregator_knows_the_trusted_steps() -> None:
    before = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    run_sound_step(before, 4)
    run_sound_step(before, 5, with_checksums=False)
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.optimizer()
    for session in (1, 2, 3):
        dialogue.joins(session, holds=(1, 6))
    dialogue.stands(1, 6)
    assert list(exclude_first(dialogue).void) == [pb.Void(generation=1, step=4)], "not 6, where it found them"


def test_every_later_open_names_the_void_checkpoints() -> None:
    before = checked(1, 2, 3, on_faulty="go_back")
    report_first_faulty(before)
    before.computed(2, checksums={0: RIGHT})
    assert "optimizer <- Open" in before.computed(3, checksums={0: RIGHT})
    before.give(ev.OptimizerLost("broke"))
    (order,) = opened(before.core.handle(ev.OptimizerConnected("opt"), before.clock))
    assert list(order.void) == [pb.Void(generation=1, step=0)], "it never was right as far as is known"
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    (order,) = opened(dialogue.core.handle(ev.OptimizerConnected("opt"), dialogue.clock))
    assert list(order.void) == [pb.Void(generation=1, step=0)]
    assert dialogue.stands(1, 3) == ["optimizer <- Open"], "not gone back yet"


# ---- checkers that go, refuse, or are silent ----


def test_a_check_whose_checker_is_gone_goes_to_another() -> None:
    dialogue = checked(1, 2, 3)
    report_first_faulty(dialogue)
    assert "3 <- verify 0 of 1.0" in dialogue.give(ev.WorkerLost(2, "gone"))


def test_a_check_that_a_worker_cannot_do_goes_to_another() -> None:
    dialogue = checked(1, 2, 3)
    report_first_faulty(dialogue)
    failure = pb.Failure(job="a", lease=dialogue.leases[2], reason="out of memory")
    lines = dialogue.says(2, failure)
    assert "3 <- verify 0 of 1.0" in lines
    facts = "w2 ... micro-batch 0 ... step 1 ... out of memory"
    assert any(has_facts(note, facts) for note in dialogue.notes)


def test_a_late_check_is_revoked_and_then_abandoned() -> None:
    dialogue = checked(1, 2)
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 0)
        dialogue.computed(session, checksums={session - 1: RIGHT})
    dialogue.computed(1, checksums={1: RIGHT})
    waits = [(each.peer, each.what) for each in dialogue.status().waits]
    assert ("w2", "checksum of micro-batch 0") in waits
    assert dialogue.goes_by(STANDARD_TIMEOUTS.deaf - 1, 1, 2) == []
    lines = dialogue.goes_by(2.0, 1, 2)
    assert lines == ["2 <- revoke", "1 <- verify 0 of 1.0"], "at least it is held against itself"
    assert dialogue.goes_by(STANDARD_TIMEOUTS.deaf + 1, 1, 2) == [
        "1 <- revoke",
        "check abandoned",
        "forward #0",
    ]
    assert "no other worker" in dialogue.notes[-1]


def test_a_worker_that_dies_before_its_checksum_is_not_waited_for() -> None:
    dialogue = checked(1, 2)
    for session in (1, 2):
        dialogue.chunk(session, 1, 0, 0)
    dialogue.computed(2, checksums={1: RIGHT})
    lines = dialogue.give(ev.WorkerLost(1, "gone"))
    assert "check abandoned" in lines and "2 <- verify 1 of 1.0" in lines
    assert dialogue.computed(2, checksums={1: RIGHT}) == ["check passed", "forward #0"]


def test_a_worker_that_knows_of_no_checksums_is_not_waited_for() -> None:
    dialogue = checked(1, 2)
    assert dialogue.computed(1) == ["check abandoned"]
    assert "has sent no checksum" in dialogue.notes[-1]


def test_a_worker_whose_mesh_never_holds_the_weights_is_not_waited_for_long() -> None:
    dialogue = checked(1, 2, micro_batches=1)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.computed(1, checksums={0: RIGHT})
    dialogue.computed(2, checksums={0: RIGHT})
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0)
    dialogue.weights_loaded(1, 1, 1)
    assert dialogue.computed(1, checksums={0: RIGHT}) == [], "the other one will hold them soon"
    assert dialogue.goes_by(STANDARD_TIMEOUTS.deaf + 1, 1, 2) == ["1 <- verify 0 of 1.1"]


def test_without_workers_a_check_waits_for_the_next_one() -> None:
    dialogue = checked(1)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.computed(1, checksums={0: RIGHT})
    assert dialogue.give(ev.WorkerLost(1, "gone")) == []
    assert dialogue.joins(2, holds=(1, 0)) == ["2 <- verify 0 of 1.0"]
    assert dialogue.computed(2, checksums={0: RIGHT}) == ["check passed", "forward #0"]
