"""From when a lease counts as late."""

from __future__ import annotations

from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import training


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
    assert dialogue.core.waits(dialogue.now)[0].seconds == 1.25
    assert dialogue.goes_by(STANDARD_TIMEOUTS.stall - 2, 1, 2) == []
    assert dialogue.goes_by(2, 1, 2)[0] == "1 <- revoke", "from then on it has to hurry"
