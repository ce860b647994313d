"""Workers that leave their row again and again: the others go on without them, for ever longer."""

from __future__ import annotations

from aggregator.core import events as ev
from aggregator.core.rows.departures import MOST_KNOWN, DepartedWorkers
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.rows import RowDialogue, lost, state_of, training_rows
from tests.support.facts import has_facts

PAUSE_SECONDS = 2 * STANDARD_TIMEOUTS.deaf


def returns(dialogue: RowDialogue, session: int, name: str = "w2") -> list[str]:
    """Connect a worker of this name again, in a new session."""
    dialogue.hello(session, name, pipeline_address="host2:1")
    return dialogue.give(ev.DataStreamOpened(session))


def flapping() -> RowDialogue:
    """Return a job of two stages and two workers, of which w2 has left twice before a lease was computed."""
    dialogue = training_rows(1, 2)
    lost(dialogue, 2)
    assert "12 <- join stage 1" in returns(dialogue, 12), "it may have died, and was started again"
    dialogue.builds(12, holds=(1, 0))
    lost(dialogue, 12)
    assert returns(dialogue, 22) == []
    return dialogue


def test_a_worker_that_flaps_does_not_keep_the_other_from_taking_all_stages() -> None:
    dialogue = flapping()
    assert state_of(dialogue)["w2"] == "spare"
    details = [each.detail for each in dialogue.status().workers]
    assert has_facts(details[1], "left its row 2 times ... stages in 60 s"), details
    for session in (32, 42):  # its returns don't renew the wait
        assert dialogue.goes_by(12.5, 1, session - 10) == []
        lost(dialogue, session - 10)
        assert returns(dialogue, session) == []
    assert dialogue.goes_by(10, 1, 42) == ["1 <- join stages 0-1"]
    dialogue.builds(1, holds=(1, 0))
    assert dialogue.told[1] == StageRun(0, 2) and 1 in dialogue.leases
    dialogue.goes_by(PAUSE_SECONDS, 1, 42)
    assert dialogue.told[42] == StageRun(1, 1), "it is tried again"


def test_a_lease_that_passes_its_row_clears_a_worker() -> None:
    dialogue = training_rows(1, 2)
    lost(dialogue, 2)
    returns(dialogue, 12)
    dialogue.builds(12, holds=(1, 0))
    dialogue.tells(12)
    dialogue.tells(1, losses=[1, 2, 3, 4])
    lost(dialogue, 12)
    assert returns(dialogue, 22) == ["22 <- join stage 1"]


def test_a_worker_without_which_stages_would_lack_is_taken_at_once() -> None:
    dialogue = training_rows(1, 2, stages=2, min_workers=2)
    for session in (2, 12, 22):
        lost(dialogue, session)
        assert returns(dialogue, session + 10) == [f"{session + 10} <- join stage 1"]


def test_pauses_double_up_to_a_limit_and_few_workers_are_remembered() -> None:
    departed = DepartedWorkers(STANDARD_TIMEOUTS)
    found = []
    for _ in range(9):
        departed.note("w", 0.0)
        found.append(departed.why_left_out("w", 0.0).rpartition(" in ")[2])
    assert found == ["", "60 s", "120 s", "240 s", "480 s", "960 s", "1800 s", "1800 s", "1800 s"]
    for number in range(MOST_KNOWN):
        departed.note(f"other-{number}", 0.0)
    assert departed.why_left_out("w", 0.0) == ""
