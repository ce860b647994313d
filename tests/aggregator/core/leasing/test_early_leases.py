"""Tests of early leases: workers that had all older weights get leases while the new weights are still being sent."""

from __future__ import annotations

from aggregator.core import events as ev
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training


def committed(*workers: int, chunks: int = 2) -> Dialogue:
    """Return a cluster whose step 0 is committed and whose new weights have not arrived yet."""
    talk = training(*workers, chunks=chunks)
    for session in workers:
        talk.computed(session)
    talk.commits(1, 0)
    return talk


def test_a_newcomer_is_leased_work_when_it_holds_all_weights() -> None:
    talk = training(1, chunks=2)
    talk.joins(2)
    assert talk.commits(1, 0) == ["drop all", "1 <- window 2", "1 <- train 0-3 of 1.1"]
    talk.weights(1, 1, 0, 1)
    assert talk.sent_weights(2) == ["1.1 #0", "1.1 #1"]
    assert talk.give(ev.WorkerLost(1, "gone")) == []
    assert talk.weights_loaded(2, 1, 1) == ["2 <- window 2", "2 <- train 0-3 of 1.1"]


def test_what_a_lost_worker_leaves_goes_to_those_that_hold_all_weights() -> None:
    talk = committed(1, 2)
    talk.weights(1, 1, 0)
    assert talk.give(ev.WorkerLost(1, "gone")) == [], "no idle worker has all weights"
    talk.weights(1, 1, 1)
    assert talk.weights_loaded(2, 1, 1) == [], "it has work of its own to do first"
    assert talk.computed(2) == ["2 <- window 2", "2 <- train 0-1 of 1.1"]


def test_a_worker_that_gets_its_weights_too_slowly_stalls() -> None:
    talk = committed(1, 2)
    talk.weights(1, 1, 0, 1)
    talk.weights_loaded(1, 1, 1)
    talk.computed(1)
    assert talk.later(STANDARD_TIMEOUTS.stall - 1, 1, 2) == []
    assert talk.later(2.0, 1, 2) == ["2 <- revoke", "1 <- window 2", "1 <- train 2-3 of 1.1"]
    talk.weights_loaded(2, 1, 1)
    assert talk.core.status(talk.now).workers[1].state == "ready", "it reported work again"


def test_no_lease_is_revoked_while_all_wait_for_weights() -> None:
    talk = committed(1, 2)
    assert talk.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], "the optimizer may be away for long"


def test_a_version_is_overtaken_by_another_generation() -> None:
    talk = committed(1, 2)
    talk.weights(1, 1, 0)
    former = dict(talk.leases)
    talk.optimizer()
    assert talk.stands(2, 0)[-4:] == [
        "1 <- window 2",
        "1 <- train 0-1 of 2.0",
        "2 <- window 2",
        "2 <- train 2-3 of 2.0",
    ]
    assert talk.chunk(1, 1, 1, 1, lease=former[1]) == [], "of the generation before"


def test_after_an_evaluation_a_worker_that_is_still_sent_weights_is_leased_work_too() -> None:
    talk = training(1, 2, step=1, evaluate_every=2, chunks=2)
    talk.commits(1, 1)
    talk.weights(1, 2, 0, 1)
    assert talk.weights_loaded(1, 1, 2) == ["1 <- evaluate 0 of 1.2"], (
        "batches are evaluated by those that hold all"
    )
    talk.evaluated(1, 1, 2, (0, 1.0))
    talk.evaluated(1, 1, 2, (1, 1.0))
    assert talk.evaluated(1, 1, 2, (2, 1.0))[1:] == [
        "1 <- window 2",
        "1 <- train 0-1 of 1.2",
        "2 <- window 2",
        "2 <- train 2-3 of 1.2",
    ]
