"""Dialogues with an aggregator whose process is stopped for a while."""

from __future__ import annotations

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
