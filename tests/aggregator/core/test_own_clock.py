"""Dialogues with an aggregator whose process is stopped for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.own_clock import OwnClock
from tests.support.dialogues.aggregator import training


def test_messages_sent_while_the_aggregator_was_frozen_are_in_time() -> None:
    dialogue = training(1, 2)
    for _ in range(3):
        dialogue.later(1.25, 1, 2)
    assert dialogue.later(60.0) == [], (
        "its first look after a pause: all words of the workers wait to be read"
    )
    assert dialogue.later(1.25, 1) == []
    for _ in range(9):
        assert dialogue.later(1.25, 1) == []
    assert dialogue.later(1.25, 1)[0].startswith("2 closed: silent for 13."), (
        "the dead one is seen all the same"
    )


def test_the_first_message_after_a_pause_excuses_all_workers() -> None:
    dialogue = training(1, 2)
    dialogue.later(1.25, 1, 2)
    assert dialogue.later(60.0, 1) == [], "the words of one are read before the first look"


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=30))
def test_the_clock_never_goes_back(inputs: list[tuple[int, bool]]) -> None:
    clock, now, before = OwnClock(5.0), 0.0, 0.0
    for later, is_tick in inputs:
        now += later
        clock.note_input(now)
        if is_tick:
            clock.note_tick(now)
        assert clock.now(now) >= before, "a step would have taken less than no time"
        before = clock.now(now)
