"""Dialogues about rows that take too long, and devices that hang: which worker a spare replaces."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.rows import state_of, too_large, training_rows, waits_for
from tests.support.facts import has_facts

STALL = STANDARD_TIMEOUTS.stall + 2.5
PAUSE = 2 * STANDARD_TIMEOUTS.deaf + 2.5


def test_a_spare_replaces_one_worker_after_another_of_a_row_that_hangs() -> None:
    dialogue = training_rows(1, 2, 3)
    assert dialogue.goes_by(STALL, 1, 2, 3) == ["1 <- revoke", "2 <- revoke", "3 <- join stage 0"]
    assert has_facts(
        dialogue.notes[-1], "the row of w1, w2 takes too long over a lease; a spare replaces worker w1"
    )
    dialogue.builds(3, holds=(1, 0))
    assert dialogue.goes_by(STALL, 1, 2, 3) == ["3 <- revoke", "2 <- revoke", "1 <- join stage 1"]
    dialogue.builds(1, holds=(1, 0))
    assert dialogue.leases[1] == dialogue.leases[3]


def test_a_worker_that_has_done_its_part_is_not_the_one_that_hangs() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.tells(1)
    assert dialogue.goes_by(STALL, 1, 2, 3)[-1] == "3 <- join stage 1"


def test_a_row_that_waits_for_weights_does_not_hang() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0)
    assert dialogue.goes_by(STALL, 1, 2, 3) == []
    dialogue.weights(1, 1, 1)
    for session in (1, 2):
        dialogue.weights_loaded(session, 1, 1)
    assert dialogue.later(2.5, 1, 2, 3) == [], "its time begins with the weights"
    assert dialogue.goes_by(STALL, 1, 2, 3)[-1] == "3 <- join stage 0"


def test_a_row_without_a_spare_is_tried_without_one_worker_after_another() -> None:
    dialogue = training_rows(1, 2)
    dialogue.hello(3)
    dialogue.give(ev.DataStreamOpened(3))
    too_large(dialogue, 3)  # it can have no stage beside others
    assert dialogue.goes_by(STALL, 1, 2, 3) == ["1 <- revoke", "2 <- revoke", "2 <- join stages 0-1"]
    assert has_facts(dialogue.notes[-1], "takes too long over a lease, perhaps because of worker w1")
    assert state_of(dialogue)["w1"] == "spare"
    dialogue.builds(2, holds=(1, 0))
    assert dialogue.leases[2]
    assert "1 <- join stage 1" in dialogue.goes_by(PAUSE, 1, 2, 3), "it is tried again"
    dialogue.builds(1, holds=(1, 0))
    dialogue.builds(2, holds=(1, 0))
    assert dialogue.goes_by(STALL, 1, 2, 3)[-1] == "1 <- join stages 0-1"


def test_a_worker_without_which_its_row_has_worked_is_the_first_suspect() -> None:
    dialogue = training_rows(1, 2)
    assert dialogue.goes_by(STALL, 1, 2)[-1] == "2 <- join stages 0-1"
    dialogue.builds(2, holds=(1, 0))
    dialogue.tells(2, losses=[1.0] * 4)
    dialogue.goes_by(PAUSE, 1, 2)
    dialogue.builds(1, holds=(1, 0))
    dialogue.builds(2, holds=(1, 0))
    assert dialogue.goes_by(STALL, 1, 2)[-1] == "2 <- join stages 0-1", (
        "and not worker 2, which was not blamed yet"
    )


def test_a_worker_that_does_not_load_weights_which_others_have_is_left_out() -> None:
    dialogue = training_rows(1, 2)
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0, 1)
    dialogue.weights_loaded(1, 1, 1)
    assert dialogue.goes_by(STALL + 2.5, 1, 2)[-1] == "1 <- join stages 0-1"


def test_a_row_whose_chunks_do_not_come_is_late_although_it_has_computed() -> None:
    dialogue = training_rows(1, 2)
    dialogue.tells(1)
    dialogue.tells(2, losses=[1.0] * 4)
    dialogue.sends(2, 1, 0)
    assert dialogue.goes_by(STALL + 2.5, 1, 2)[-1] == "2 <- join stages 0-1"


# ---- devices that hang, by what their workers say of them ----


def busy(task: pb.DeviceTask = pb.COMPUTE_GRADIENTS) -> pb.DeviceReport:
    return pb.DeviceReport(task=task)


def waiting(worker: str = "w2") -> pb.DeviceReport:
    return pb.DeviceReport(task=pb.COMPUTE_GRADIENTS, waits_for=f"gradient of micro-batch 0, worker {worker}")


@pytest.mark.parametrize("guilty", range(4))
def test_the_worker_whose_device_hangs_is_found_within_one_stall(guilty: int) -> None:
    workers = (1, 2, 3, 4)
    dialogue = training_rows(*workers, 5, stages=4)
    dialogue.devices = {each: waiting() for each in workers}
    dialogue.devices[workers[guilty]] = busy()
    dialogue.devices[5] = pb.DeviceReport()
    assert dialogue.goes_by(STALL, *workers, 5)[-1] == f"5 <- join stage {guilty}"
    name = f"w{workers[guilty]}"
    found = [note for note in dialogue.notes if "device" in note]
    assert has_facts(found[0], f"worker {name}: its device computes gradients ... not got on for 602 s")
    assert has_facts(found[1], f"a spare replaces worker {name}")
    assert state_of(dialogue)[name] == "stalled", "it is no spare"
    dialogue.devices[workers[guilty]] = pb.DeviceReport()
    dialogue.later(2.5, *workers, 5)
    assert dialogue.notes[-1] == f"worker {name}: its device goes on"
    assert state_of(dialogue)[name] == "spare"


def test_a_row_that_loads_weights_hangs_with_its_worker() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0, 1)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.devices = {1: waiting(), 2: busy(pb.LOAD_WEIGHTS), 3: pb.DeviceReport()}
    assert dialogue.goes_by(STALL, 1, 2, 3)[-1] == "3 <- join stage 1"
    assert any(has_facts(note, "worker w2: its device loads weights") for note in dialogue.notes)


def test_without_a_spare_the_row_waits_for_the_worker_that_is_named() -> None:
    dialogue = training_rows(1, 2)
    dialogue.devices = {1: waiting(), 2: busy()}
    assert dialogue.goes_by(2 * STALL, 1, 2) == []
    assert state_of(dialogue) == {"w1": "computing stage 0", "w2": "stalled stage 1"}
    assert has_facts(waits_for(dialogue), "worker w2: its device computes gradients ... restart it")
    assert dialogue.arrives(3)[-1] == "3 <- join stage 1", "a spare came"


def test_a_slow_row_whose_devices_get_on_is_left_alone() -> None:
    dialogue = training_rows(1, 2, 3)
    for _ in range(30):
        dialogue.devices = {1: waiting(), 2: busy(), 3: pb.DeviceReport()}
        assert dialogue.goes_by(STALL / 10, 1, 2, 3) == []


def test_workers_that_all_wait_are_replaced_one_after_another() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.devices = {1: waiting("w2"), 2: waiting("w1"), 3: pb.DeviceReport()}
    assert dialogue.goes_by(STALL, 1, 2, 3)[-1] == "3 <- join stage 0"
