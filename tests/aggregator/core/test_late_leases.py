"""From when a lease counts as late."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from aggregator.core.cluster_status import find_waits
from aggregator.core.membership.devices import STALLED_TIMES
from aggregator.core.rows.forming import Seat
from aggregator.core.rows.row import MOST_STALLS, WHOLE_MODEL, Row
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training


def test_a_lease_is_late_from_when_its_worker_had_the_weights() -> None:
    dialogue = training(1, 2)
    for session in (1, 2):
        dialogue.computed(session)
        dialogue.chunk(session, 1, 0, 0)
    dialogue.commits(1, 0)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.computed(1)
    dialogue.later(STANDARD_TIMEOUTS.stall - 1, 1, 2)
    dialogue.weights_loaded(2, 1, 1)
    assert dialogue.goes_by(STANDARD_TIMEOUTS.stall - 1, 1, 2) == [], "the weights were long on the way"
    assert any("2 <- revoke" in line for line in dialogue.later(2, 1, 2))


def test_no_lease_is_late_because_the_aggregator_was_stopped() -> None:
    dialogue = training(1, 2)
    dialogue.computed(2)
    dialogue.later(1.25, 1, 2)
    assert dialogue.later(2 * STANDARD_TIMEOUTS.stall, 1, 2) == [], "what is late waits to be read"
    assert find_waits(dialogue.core, dialogue.now)[0].seconds == 1.25
    assert dialogue.goes_by(STANDARD_TIMEOUTS.stall - 2, 1, 2) == []
    assert dialogue.goes_by(2, 1, 2)[0] == "1 <- revoke", "from then on it has to hurry"


def test_a_lease_is_late_whose_worker_has_computed_it_and_sends_nothing() -> None:
    dialogue = training(1, 2)
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.computed(2)
    assert find_waits(dialogue.core, dialogue.now)[0].peer == "w2"
    dialogue.later(1.25, 1, 2)
    assert not any("revoke" in line for line in dialogue.goes_by(STANDARD_TIMEOUTS.stall - 2, 1, 2))
    assert "2 <- revoke" in dialogue.goes_by(4, 1, 2), "else the job would wait for ever"


@pytest.mark.parametrize("late_every", [1, 2])
def test_a_worker_that_loads_weights_and_is_late_holds_no_more_than_two_steps_up(late_every: int) -> None:
    dialogue = training(1, 2, steps=9)
    held_up = 0
    for step in range(8):
        for session in (1, 2) if step % late_every else (1,):
            dialogue.computed(session)
            dialogue.chunk(session, 1, step, 0)
        if step_is_open(dialogue, step):
            held_up += 1
            dialogue.goes_by(STANDARD_TIMEOUTS.stall + 3, 1, 2)
            dialogue.computed(1)
            dialogue.chunk(1, 1, step, 0)
        dialogue.commits(1, step)
        for session in (1, 2):
            dialogue.weights_loaded(session, 1, step + 1)
    assert held_up == MOST_STALLS


@pytest.mark.parametrize(("seconds", "keeps_stalling"), [(6000.0, True), (6001.0, False)])
def test_a_row_that_was_late_long_ago_is_late_for_the_first_time_again(
    seconds: float, keeps_stalling: bool
) -> None:
    row = Row(0, (Seat(1, WHOLE_MODEL),), [])
    row.note_stall(600.0, 0.0)
    row.note_work()
    row.note_stall(600.0, seconds)
    assert row.stalled and row.keeps_stalling == keeps_stalling


def test_no_lease_gets_more_time_by_a_duration_that_the_worker_only_says() -> None:
    dialogue = training(1)
    dialogue.later(4.0, 1)
    dialogue.computed(1, seconds=1e5)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.commits(1, 0)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.joins(2, holds=(1, 1))
    assert "1 <- revoke" in dialogue.goes_by(STANDARD_TIMEOUTS.stall + 5, 1, 2)


def test_a_worker_that_was_slow_alone_gets_no_more_than_stall_for_a_micro_batch() -> None:
    dialogue = training(1)
    dialogue.goes_by(100 * STANDARD_TIMEOUTS.stall, 1)
    dialogue.computed(1, seconds=100 * STANDARD_TIMEOUTS.stall)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.commits(1, 0)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.joins(2, holds=(1, 1))
    most_seconds = STALLED_TIMES * 4 * STANDARD_TIMEOUTS.stall
    assert not any("revoke" in line for line in dialogue.goes_by(most_seconds - 5, 1, 2))
    assert "1 <- revoke" in dialogue.goes_by(10, 1, 2), "four micro-batches, five times `stall` for each"


def test_a_process_that_connects_again_has_its_stalls_behind_it() -> None:
    dialogue = training(1, 2)
    held_up, session = 0, 2
    for step in range(4):
        dialogue.computed(1)
        dialogue.chunk(1, 1, step, 0)
        if step_is_open(dialogue, step):
            held_up += 1
            dialogue.goes_by(STANDARD_TIMEOUTS.stall + 3, 1, session)
            dialogue.computed(1)
            dialogue.chunk(1, 1, step, 0)
        dialogue.commits(1, step)
        dialogue.weights_loaded(1, 1, step + 1)
        dialogue.give(ev.WorkerLost(session, "gone"))
        session += 1
        dialogue.hello(session, "w2", incarnation="i2")
        dialogue.give(ev.DataStreamOpened(session))
        dialogue.ready(session, holds=(1, step + 1))
    assert held_up == MOST_STALLS


def step_is_open(dialogue: Dialogue, step: int) -> bool:
    """Return whether something of a step is missing."""
    run = dialogue.run
    assert run is not None and run.lease_book.step_sum is not None
    return not run.lease_book.step_sum.coverage.complete
