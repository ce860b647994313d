"""Dialogues about jobs that need a feature, with peers of the version before, which lack it."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from protos.jobs_pb2 import FAILED, RUNNING
from services.protocol import features
from services.protocol.features import Feature
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue

LACK = "lacks feature wheels, which job a needs; upgrade it to Tiermesh 0.4"
WHEELS = {"features": ("wheels",)}


@pytest.fixture(autouse=True)
def wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a feature."""
    monkeypatch.setattr(features, "FEATURES", (Feature("wheels", "0.4", lambda config: False),))


def jobs_of(dialogue: Dialogue) -> str:
    """Return the job of each worker; a dash for none."""
    return "".join(each.job or "-" for each in dialogue.core.members.values())


def test_a_worker_that_lacks_a_feature_is_refused_by_name() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit(**WHEELS)
    assert "1 <- join" in dialogue.hello(1, features=["wheels", "sails"])
    assert f"2 <- leave: {LACK}" in dialogue.hello(2, features=["sails"])
    dialogue.give(ev.Ticked())
    _, worker = dialogue.status().workers
    assert (worker.state, worker.detail) == ("refused", LACK)
    assert any(LACK in note and "w2" in note for note in dialogue.notes), dialogue.notes
    assert dialogue.job().state == RUNNING


def test_it_serves_other_jobs() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.hello(2, features=["wheels"])
    dialogue.submit("a", max_workers=1, **WHEELS)
    dialogue.submit("b", max_workers=1)
    dialogue.later(1.25, 1, 2)
    assert jobs_of(dialogue) == "ba"


def test_a_queued_job_says_which_workers_lack_what() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("b", max_workers=1)
    dialogue.submit("a", **WHEELS)
    dialogue.hello(1)
    assert list(dialogue.core.runs) == ["b"]
    reason = dialogue.core.assignments.waits["a"].reason
    assert reason.endswith(f"not w1 ({LACK})"), reason


def test_the_job_fails_if_no_worker_with_the_feature_comes() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit(**WHEELS)
    dialogue.hello(1)
    assert dialogue.job().state == RUNNING, "another one may come"
    while dialogue.job().state == RUNNING and dialogue.now < 100 + 2 * STANDARD_TIMEOUTS.comeback:
        dialogue.later(1.25, 1)
    assert dialogue.job().detail == f"no worker can run the job: w1: {LACK}"


@pytest.mark.parametrize("peer", ["optimizer opt", "shard shard-1"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_job_ends_that_the_optimizer_or_a_shard_can_not_have(peer: str, is_first: bool) -> None:
    dialogue = Dialogue()
    connected = ev.OptimizerConnected("opt", {"shard shard-0": ("wheels",), peer: ()})
    if is_first:
        dialogue.give(connected)
        told = dialogue.submit(**WHEELS)
    else:
        dialogue.submit(**WHEELS)
        told = dialogue.give(connected)
    assert "optimizer <- Open" not in told
    assert (dialogue.job().state, dialogue.job().detail) == (FAILED, f"{peer} {LACK}")
    assert "optimizer <- Open" in dialogue.submit("b"), "it has what another job needs"
