"""Dialogues about verification. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training

RIGHT, WRONG = 0x11, 0x22


def checked(*workers: int, micro_batches: int | None = None, **plan: Any) -> Dialogue:
    """Return workers in the first step of a job that checks every micro-batch, by default one per worker."""
    settings = {"micro_batches": micro_batches or len(workers), "verify_fraction": 1.0, "on_faulty": "go_on"}
    return training(*workers, **{**settings, **plan})


def faulty_first(talk: Dialogue) -> list[str]:
    """Report a wrong checksum of micro-batch 0 from worker 1, and right ones from the others."""
    leases = dict(talk.leases)
    lines = talk.computed(1, checksums={0: WRONG})
    for session in sorted(set(leases) - {1}):
        lines += talk.computed(session, lease=leases[session], checksums={session - 1: RIGHT})
    return lines


# ---- all is well ----


def test_a_step_waits_for_its_checks_and_loses_no_chunk() -> None:
    talk = checked(1, 2, chunks=2)
    assert talk.computed(1, checksums={0: RIGHT}) == [], "the other one is busy"
    for chunk in (1, 0):
        talk.chunk(1, 1, 0, chunk)
    assert talk.chunk(2, 1, 0, 1) == ["keep 1 #1", "merge 0 + 1 #1", "forward #1"]
    assert talk.chunk(2, 1, 0, 0) == ["keep 1 #0", "merge 0 + 1 #0"], "held back"
    assert talk.computed(2, checksums={1: RIGHT}) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    speeds = [each.micro_batches_per_second for each in talk.core.status(talk.now).workers]
    assert talk.computed(1, seconds=1e-3, checksums={1: RIGHT}) == ["check passed"]
    assert talk.computed(2, seconds=1e-3, checksums={0: RIGHT}) == ["check passed", "forward #0"]
    assert [each.micro_batches_per_second for each in talk.core.status(talk.now).workers] == speeds
    assert "drop all" in talk.commits(1, 0)


def test_nothing_is_asked_for_unless_the_job_wants_it() -> None:
    talk = training(1, 2)
    effects = talk.core.handle(ev.FromOptimizer(pb.Commit(job="a", generation=1, step=0)), talk.clock)
    leases = [
        each.body for each in effects if isinstance(each, ev.ToWorker) and isinstance(each.body, pb.Lease)
    ]
    assert [list(lease.checksums) for lease in leases] == [[], []]


def test_leases_name_what_is_checked_of_their_nodes() -> None:
    talk = checked(1, 2, micro_batches=4)
    effects = talk.core.handle(ev.FromOptimizer(pb.Commit(job="a", generation=1, step=0)), talk.clock)
    leases = [
        each.body for each in effects if isinstance(each, ev.ToWorker) and isinstance(each.body, pb.Lease)
    ]
    assert [list(lease.checksums) for lease in leases] == [[0, 1], [2, 3]]


def test_repeated_messages_are_no_second_opinions() -> None:
    talk = checked(1)
    lease = talk.leases[1]
    assert talk.computed(1, checksums={0: RIGHT}) == ["1 <- verify 0 of 1.0"]
    assert talk.computed(1, lease=lease, checksums={0: RIGHT}) == []
    again = talk.leases[1]
    assert talk.computed(1, checksums={0: RIGHT}) == ["check passed"]
    assert talk.computed(1, lease=again, checksums={0: WRONG}) == []
    assert talk.chunk(1, 1, 0, 0, lease=lease) == ["keep 0 #0", "forward #0"], (
        "the gate was open when it came"
    )


def test_unrequested_checksums_are_ignored() -> None:
    talk = checked(1, 2)
    assert talk.computed(1, checksums={0: RIGHT, 1: WRONG, 9: WRONG}) == []
    assert talk.computed(2, checksums={1: RIGHT}) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    assert talk.computed(1, checksums={0: WRONG, 1: RIGHT}) == ["check passed"]
    talk = training(1, 2)
    assert talk.computed(1, checksums={0: RIGHT}) == []
    assert talk.says(1, pb.Computed(job="a", lease=999, checksums=[pb.Checksum(crc32c=1)])) == []


# ---- somebody lies ----


def test_a_third_worker_decides_which_one_is_faulty_and_the_step_starts_over() -> None:
    talk = checked(1, 2, 3)
    assert faulty_first(talk) == ["2 <- verify 0 of 1.0", "1 <- verify 1 of 1.0"]
    assert talk.computed(2, checksums={0: RIGHT}) == ["3 <- verify 0 of 1.0", "2 <- verify 2 of 1.0"]
    lines = talk.computed(3, checksums={0: RIGHT})
    reason = (
        "faulty: step 1, micro-batch 0, checksums of its gradient: w1 0x00000022, w2 0x00000011, w3 0x00000011; it "
        "takes no part in this job any more; once its hardware is repaired, start it with another --name"
    )
    assert lines == [
        "check faulty",
        "drop all",
        "save a running",
        f"1 <- leave: {reason}",
        "optimizer <- StartOver",
    ]
    assert talk.chunk(2, 1, 0, 0) == [], "the sum of this step is void"
    assert talk.core.describe_wait(talk.now) == "the optimizer to start step 0 over"
    talk.goes_by(1.0, 2, 3)
    assert [(each.role, each.what) for each in talk.core.status(talk.now).waits] == [
        ("optimizer", "to start over")
    ]
    assert [(each.worker, each.generation, each.step) for each in talk.job().excluded] == [("w1", 1, 0)]
    assert f"worker w1 takes no part: {reason}" in talk.notes
    lines = talk.stands(2, 0)
    assert [line for line in lines if "train" in line] == ["2 <- train 0-1 of 2.0", "3 <- train 2 of 2.0"]
    assert talk.job().generation == 2


@pytest.mark.parametrize(("again", "outcome"), [(RIGHT, "check faulty"), (WRONG, "check undecided")])
def test_of_two_workers_the_one_that_contradicts_itself(again: int, outcome: str) -> None:
    talk = checked(1, 2)
    for session in (1, 2):
        talk.chunk(session, 1, 0, 0)
    faulty_first(talk)
    talk.computed(1, checksums={1: RIGHT})
    assert talk.computed(2, checksums={0: RIGHT}) == ["1 <- verify 0 of 1.0"], "each is asked once more"
    lines = talk.computed(1, checksums={0: again})
    if again == WRONG:
        assert lines == ["2 <- verify 0 of 1.0"]
        lines = talk.computed(2, checksums={0: RIGHT})
    assert lines[0] == outcome
    assert [each.worker for each in talk.job().excluded] == ["w1"] * (again == RIGHT)
    if again == WRONG:
        assert "undecided" in talk.notes[-1]
        assert lines[1:] == ["forward #0"], "the job goes on"


def test_a_single_worker_is_checked_against_itself_and_a_job_without_workers_fails() -> None:
    talk = checked(1)
    talk.computed(1, checksums={0: RIGHT})
    lines = talk.computed(1, checksums={0: WRONG})
    assert lines[0] == "check faulty"
    assert "optimizer <- Close" in lines
    assert (talk.job().state, "no worker can run it; w1: faulty: step 1" in talk.job().detail) == (
        FAILED,
        True,
    )


def test_a_faulty_worker_is_refused_by_name_after_any_restart() -> None:
    before = checked(1, 2, 3)
    faulty_first(before)
    before.computed(2, checksums={0: RIGHT})
    before.computed(3, checksums={0: RIGHT})
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    lines = talk.hello(7, name="w1")
    assert lines[0] == "7 <- welcome" and lines[1].startswith("7 <- leave: faulty: step 1, micro-batch 0")
    assert talk.ready(7) == [], "nothing that it says of this job is heard"
    assert talk.hello(8, name="w2") == ["8 <- welcome", "8 <- join"]
    states = {each.name: (each.state, each.detail[:6]) for each in talk.core.status(talk.now).workers}
    assert states == {"w1": ("refused", "faulty"), "w2": ("connected", "")}
    assert talk.job().state == RUNNING


def test_start_over_is_repeated_until_the_optimizer_has_done_it() -> None:
    talk = checked(1, 2, 3)
    faulty_first(talk)
    talk.computed(2, checksums={0: RIGHT})
    talk.computed(3, checksums={0: RIGHT})
    talk.give(ev.OptimizerLost("broke"))
    talk.optimizer()
    assert talk.stands(1, 0, missing=[]) == ["optimizer <- StartOver"]
    assert talk.stands(1, 0) == ["optimizer <- StartOver"]
    assert any("train" in line for line in talk.stands(2, 0))


def test_what_another_aggregator_had_summed_is_not_trusted() -> None:
    before = checked(1, chunks=2, step=2)
    talk = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    talk.joins(1, holds=(1, 2))
    assert talk.stands(1, 2, missing=[0]) == ["optimizer <- StartOver"]
    assert "1 <- train 0 of 2.2" in talk.stands(2, 2)


def test_all_that_was_passed_on_by_another_aggregator_had_been_checked() -> None:
    before = checked(1, chunks=2, step=2)
    talk = Dialogue(epoch=4, chunks=2, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    talk.joins(1, holds=(1, 2))
    assert "optimizer <- SendWeights 1.2" in talk.stands(1, 2, missing=[])


# ---- back to a checkpoint ----


def opened(effects: list[ev.Effect]) -> list[pb.Open]:
    """Return the Open messages to the optimizer."""
    said = [each.body for each in effects if isinstance(each, ev.ToOptimizer)]
    return [body for body in said if isinstance(body, pb.Open)]


def sound_step(talk: Dialogue, step: int, *, told: bool = True) -> None:
    """Run a step of three workers whose checks pass, or whose checkers send no checksums."""
    for session in (1, 2, 3):
        talk.computed(session, checksums={session - 1: RIGHT})
    for session, checks in ((2, 0), (1, 1), (3, 2)):
        talk.computed(session, lease=talk.leases[session], checksums={checks: RIGHT} if told else {})
    talk.commits(1, step)
    talk.weights(1, step + 1, 0)
    for session in (1, 2, 3):
        talk.weights_loaded(session, 1, step + 1)


def convicts_first(talk: Dialogue) -> pb.Open:
    """Have two workers contradict worker 1, and return the Open messages that follow."""
    faulty_first(talk)
    talk.computed(2, checksums={0: RIGHT})
    computed = pb.Computed(job="a", lease=talk.leases[3], checksums=[pb.Checksum(crc32c=RIGHT)])
    (order,) = opened(talk.core.handle(ev.FromWorker(3, talk.core.epoch, computed), talk.clock))
    return order


def test_a_job_goes_back_to_a_checkpoint_without_faulty_gradients() -> None:
    talk = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    sound_step(talk, 4)
    sound_step(talk, 5, told=False)
    order = convicts_first(talk)
    assert list(order.void) == [pb.Void(generation=1, step=4)], (
        "in step 4 its gradient was right the last time"
    )
    assert talk.core.describe_wait(talk.now) == "the optimizer's answer"
    lines = talk.stands(2, 3)
    assert [line for line in lines if "train" in line] == ["2 <- train 0-1 of 2.3", "3 <- train 2 of 2.3"]
    assert "the optimizer went back to step 3, generation 2" in talk.notes


def test_steps_that_are_made_once_more_are_not_trusted_for_what_was_right_the_first_time() -> None:
    talk = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    sound_step(talk, 4)
    talk.give(ev.OptimizerLost("killed"))
    talk.optimizer()
    talk.stands(2, 3)
    talk.weights(2, 3, 0)
    for session in (1, 2, 3):
        talk.weights_loaded(session, 2, 3)
    assert list(convicts_first(talk).void) == [pb.Void(generation=2, step=3)], "not 4: that was before"


def test_the_next_aggregator_knows_the_trusted_steps() -> None:
    before = checked(1, 2, 3, step=4, steps=9, on_faulty="go_back")
    sound_step(before, 4)
    sound_step(before, 5, told=False)
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.optimizer()
    for session in (1, 2, 3):
        talk.joins(session, holds=(1, 6))
    talk.stands(1, 6)
    assert list(convicts_first(talk).void) == [pb.Void(generation=1, step=4)], "not 6, where it found them"


def test_every_later_open_names_the_void_checkpoints() -> None:
    before = checked(1, 2, 3, on_faulty="go_back")
    faulty_first(before)
    before.computed(2, checksums={0: RIGHT})
    assert "optimizer <- Open" in before.computed(3, checksums={0: RIGHT})
    before.give(ev.OptimizerLost("broke"))
    (order,) = opened(before.core.handle(ev.OptimizerConnected("opt"), before.clock))
    assert list(order.void) == [pb.Void(generation=1, step=0)], "it never was right as far as is known"
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    (order,) = opened(talk.core.handle(ev.OptimizerConnected("opt"), talk.clock))
    assert list(order.void) == [pb.Void(generation=1, step=0)]
    assert talk.stands(1, 3) == ["optimizer <- Open"], "not gone back yet"


# ---- checkers that go, refuse, or are silent ----


def test_a_check_whose_checker_is_gone_goes_to_another() -> None:
    talk = checked(1, 2, 3)
    faulty_first(talk)
    assert "3 <- verify 0 of 1.0" in talk.give(ev.WorkerLost(2, "gone"))


def test_a_check_that_a_worker_cannot_do_goes_to_another() -> None:
    talk = checked(1, 2, 3)
    faulty_first(talk)
    failure = pb.Failure(job="a", lease=talk.leases[2], reason="out of memory")
    lines = talk.says(2, failure)
    assert "3 <- verify 0 of 1.0" in lines
    assert "worker w2 could not check micro-batch 0 of step 1: out of memory" in talk.notes


def test_a_late_check_is_revoked_and_then_abandoned() -> None:
    talk = checked(1, 2)
    for session in (1, 2):
        talk.chunk(session, 1, 0, 0)
        talk.computed(session, checksums={session - 1: RIGHT})
    talk.computed(1, checksums={1: RIGHT})
    waits = [(each.peer, each.what) for each in talk.core.status(talk.now).waits]
    assert ("w2", "checksum of micro-batch 0") in waits
    assert talk.goes_by(STANDARD_TIMEOUTS.deaf - 1, 1, 2) == []
    lines = talk.goes_by(2.0, 1, 2)
    assert lines == ["2 <- revoke", "1 <- verify 0 of 1.0"], "at least it is held against itself"
    assert talk.goes_by(STANDARD_TIMEOUTS.deaf + 1, 1, 2) == ["1 <- revoke", "check abandoned", "forward #0"]
    assert "no worker is left" in talk.notes[-1]


def test_a_worker_that_dies_before_its_checksum_is_not_waited_for() -> None:
    talk = checked(1, 2)
    for session in (1, 2):
        talk.chunk(session, 1, 0, 0)
    talk.computed(2, checksums={1: RIGHT})
    lines = talk.give(ev.WorkerLost(1, "gone"))
    assert "check abandoned" in lines and "2 <- verify 1 of 1.0" in lines
    assert talk.computed(2, checksums={1: RIGHT}) == ["check passed", "forward #0"]


def test_a_worker_that_knows_of_no_checksums_is_not_waited_for() -> None:
    talk = checked(1, 2)
    assert talk.computed(1) == ["check abandoned"]
    assert "has sent no checksum" in talk.notes[-1]


def test_a_worker_whose_mesh_never_holds_the_weights_is_not_waited_for_long() -> None:
    talk = checked(1, 2, micro_batches=1)
    talk.chunk(1, 1, 0, 0)
    talk.computed(1, checksums={0: RIGHT})
    talk.computed(2, checksums={0: RIGHT})
    talk.commits(1, 0)
    talk.weights(1, 1, 0)
    talk.weights_loaded(1, 1, 1)
    assert talk.computed(1, checksums={0: RIGHT}) == [], "the other one will hold them soon"
    assert talk.goes_by(STANDARD_TIMEOUTS.deaf + 1, 1, 2) == ["1 <- verify 0 of 1.1"]


def test_without_workers_a_check_waits_for_the_next_one() -> None:
    talk = checked(1)
    talk.chunk(1, 1, 0, 0)
    talk.computed(1, checksums={0: RIGHT})
    assert talk.give(ev.WorkerLost(1, "gone")) == []
    assert talk.joins(2, holds=(1, 0)) == ["2 <- verify 0 of 1.0"]
    assert talk.computed(2, checksums={0: RIGHT}) == ["check passed", "forward #0"]
