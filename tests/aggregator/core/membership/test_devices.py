"""Workers whose devices hang are named, whatever they do, and their work goes to others: by what heartbeats say."""

from __future__ import annotations

import pytest

from aggregator.core.membership.devices import TASKS, Device
from protos import cluster_pb2 as pb
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

STALL = STANDARD_TIMEOUTS.stall + 2.5


def state_of(dialogue: Dialogue) -> dict[str, str]:
    return {each.name: f"{each.state}: {each.detail}" for each in dialogue.status().workers}


def test_each_task_has_a_text() -> None:
    assert {*TASKS, pb.DEVICE_TASK_UNSPECIFIED} == set(pb.DeviceTask.values())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: pb.DeviceTask.Name(task))
def test_a_worker_that_hangs_in_any_task_is_named_with_it(task: pb.DeviceTask) -> None:
    dialogue = training(1)
    dialogue.devices[1] = pb.DeviceReport(task=task)
    assert dialogue.goes_by(STALL, 1) == [], "it goes on waiting: there is no other worker"
    facts = f"its device {TASKS[task]}, and has not got on for 602 s; look at its log"
    assert has_facts(dialogue.notes[-1], f"worker w1: {facts}")
    assert has_facts(state_of(dialogue)["w1"], f"stalled: {facts}")
    assert has_facts(dialogue.describe_wait() or "", facts)
    dialogue.devices[1] = pb.DeviceReport(task=task, seconds=1)
    dialogue.later(1, 1)
    assert dialogue.notes[-1] == "worker w1: its device goes on"
    assert state_of(dialogue)["w1"] == "computing: "


def test_a_newcomer_that_hangs_with_its_first_weights_is_named() -> None:
    dialogue = training(1)
    dialogue.joins(2)
    dialogue.devices = {1: pb.DeviceReport(), 2: pb.DeviceReport(task=pb.LOAD_WEIGHTS)}
    dialogue.goes_by(STALL, 1, 2)
    assert has_facts(state_of(dialogue)["w2"], "stalled: its device loads weights")


def test_work_of_a_long_lease_goes_to_an_idle_worker_when_the_device_hangs() -> None:
    """The lease itself would be late only after five times 400 s."""
    dialogue = training(1, 2)
    dialogue.goes_by(400.0, 1, 2)
    for session in (1, 2):
        dialogue.computed(session, seconds=400.0)
        dialogue.chunk(session, 1, 0, 0, losses=(1.0,))
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0)
    for session in (1, 2):
        dialogue.weights_loaded(session, 1, 1)
    dialogue.computed(2)
    dialogue.chunk(2, 1, 1, 0, losses=(1.0,))
    dialogue.devices[1] = pb.DeviceReport(task=pb.COMPUTE_GRADIENTS)
    assert dialogue.goes_by(5 * 200.0, 1, 2) == [], "two micro-batches were computed in 400 s"
    lines = dialogue.later(2.5, 1, 2)
    assert lines[0] == "1 <- revoke" and lines[-1].startswith("2 <- train")


def test_a_hang_while_the_initial_weights_are_made_is_found() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    for session in (1, 2):
        dialogue.joins(session)
    dialogue.stands(0, 0, state=pb.OptimizerStatus.EMPTY)
    dialogue.devices[1] = pb.DeviceReport(task=pb.DESCRIBE_MODEL)
    assert dialogue.goes_by(STALL, 1, 2) == ["1 <- revoke", "2 <- initialise"]
    assert has_facts(state_of(dialogue)["w1"], "stalled: its device describes the model for checkpoints")


def test_a_build_that_hangs_is_named_with_its_task() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.devices[1] = pb.DeviceReport(task=pb.OPEN_MESH)
    dialogue.goes_by(STALL, 1)
    assert has_facts(
        state_of(dialogue)["w1"], "unfit: it has been building the job ... its device opens the mesh"
    )


def test_a_wait_for_others_is_no_hang() -> None:
    dialogue = training(1)
    dialogue.devices[1] = pb.DeviceReport(task=pb.COMPUTE_GRADIENTS, waits_for="chunk 3 of the weights")
    dialogue.goes_by(STALL, 1)
    assert state_of(dialogue)["w1"] == "computing: "


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_report_without_a_plausible_time_says_nothing(seconds: float) -> None:
    report = pb.DeviceReport(task=pb.OPEN_MESH, seconds=seconds)
    assert Device.read(pb.Heartbeat(device=report)) is None
    assert Device.read(pb.Heartbeat()) is None
    newer = Device.read(pb.Heartbeat(device=pb.DeviceReport.FromString(b"\x08\x63")))
    assert newer is not None and newer.is_busy and "is busy" in str(newer)
