"""Dialogues about links of rows that break: which workers form a row then, and when a link is tried again."""

from __future__ import annotations

from protos import cluster_pb2 as pb
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.rows import RowDialogue, lost, state_of, too_large, training_rows, waits_for
from tests.support.facts import has_facts

SHARE_AFTER = STANDARD_TIMEOUTS.deaf + 2.5


def broken(dialogue: RowDialogue, session: int, neighbour: str, lease: int = 0) -> list[str]:
    lease = lease or dialogue.leases[session]
    failure = pb.Failure(job="a", lease=lease, reason="no answer for 30 s", neighbour=neighbour)
    return dialogue.says(session, failure)


def test_a_spare_replaces_the_worker_at_the_other_end_of_a_broken_link() -> None:
    dialogue = training_rows(1, 2, 3)
    former = dialogue.leases[2]
    assert broken(dialogue, 1, "w2") == ["1 <- revoke", "2 <- revoke", "3 <- join stage 1"]
    assert broken(dialogue, 2, "w1", former) == [], "its lease is void already"
    assert state_of(dialogue) == {"w1": "ready stage 0", "w2": "spare", "w3": "building stage 1"}
    assert has_facts(dialogue.notes[-1], "w1 can't exchange arrays with worker w2: no answer for 30 s")


def builds_all(dialogue: RowDialogue, *sessions: int) -> list[str]:
    """Report that workers have built what they were told, if they had not; return what they are told then."""
    return [line for each in sessions for line in dialogue.builds(each, holds=(1, 0))]


def keep_from_sharing(dialogue: RowDialogue, *sessions: int) -> None:
    """Report that two stages do not fit workers."""
    for each in sessions:
        assert dialogue.told[each].count == 2
        too_large(dialogue, each)


def test_without_a_spare_the_two_workers_of_a_broken_link_change_places() -> None:
    dialogue = training_rows(1, 2)
    former = dialogue.leases[1]
    orders = broken(dialogue, 2, "w1")
    assert orders == ["1 <- revoke", "2 <- revoke", "1 <- join stage 1", "2 <- join stage 0"], (
        "w1 opens the link"
    )
    orders = builds_all(dialogue, 1, 2)
    assert orders[:2] == ["2 <- row of stage 0 w2, stage 1 w1", "1 <- row of stage 0 w2, stage 1 w1"]
    assert dialogue.leases[1] == dialogue.leases[2] > former
    assert has_facts(
        waits_for(dialogue), "again after: worker w2 can't exchange arrays with worker w1: no answer"
    )
    dialogue.tells(2)
    dialogue.tells(1, losses=[1, 2, 3, 4])
    assert has_facts(waits_for(dialogue), "rows with its weights: 1 of 1"), "a lease has passed the links"


def part(dialogue: RowDialogue) -> None:
    """Let the only link of two workers fail both ways around."""
    broken(dialogue, 2, "w1")
    builds_all(dialogue, 1, 2)
    broken(dialogue, 1, "w2")


def test_a_worker_that_no_other_reaches_is_left_out_until_it_may_be_tried_again() -> None:
    dialogue = training_rows(1, 2)
    part(dialogue)
    dialogue.goes_by(SHARE_AFTER, 1, 2)
    assert dialogue.told[1] == StageRun(0, 2)
    assert has_facts(dialogue.status().workers[1].detail, "w1 can't exchange arrays with worker w2")
    builds_all(dialogue, 1)
    assert state_of(dialogue) == {"w1": "computing stages 0-1", "w2": "spare"}
    dialogue.goes_by(120.0, 1, 2)
    assert dialogue.told == {1: StageRun(0, 1), 2: StageRun(1, 1)}, "the network may have healed meanwhile"


def test_a_row_whose_link_stays_broken_waits_longer_each_time() -> None:
    dialogue = training_rows(1, 2)
    part(dialogue)
    dialogue.goes_by(SHARE_AFTER, 1, 2)
    for session in (1, 2):
        if dialogue.told[session].count == 2:
            keep_from_sharing(dialogue, session)
    keep_from_sharing(dialogue, *(each for each in (1, 2) if dialogue.told[each].count == 2))
    builds_all(dialogue, 1, 2)
    assert has_facts(waits_for(dialogue), "after: worker w1 can't exchange arrays with worker w2: no answer")
    assert waits_for(dialogue).startswith("tries again in ")
    rows, hours = 0, 6
    before = set(dialogue.leases.values())
    for _ in range(hours * 1200):
        dialogue.later(3.0, 1, 2)
        if set(dialogue.leases.values()) != before:
            rows += 1
            broken(dialogue, 1, "w2")
            before = set(dialogue.leases.values())
    assert 5 < rows < 6 + 2 * hours
    lines = [
        each for each in dialogue.notes if "can't reach" in each or ("row " in each and "is ready" in each)
    ]
    assert len(lines) < 14, lines


def test_a_worker_that_is_started_again_is_tried_at_once() -> None:
    dialogue = training_rows(1, 2)
    part(dialogue)
    lost(dialogue, 2)
    dialogue.arrives(3)
    assert {dialogue.told[1], dialogue.told[3]} == {StageRun(0, 1), StageRun(1, 1)}
    builds_all(dialogue, 1, 3)
    assert dialogue.leases[1] == dialogue.leases[3]


def test_a_failure_that_names_no_neighbour_is_the_workers_own() -> None:
    for named in ("w9", "w1"):
        dialogue = training_rows(1, 2)
        assert broken(dialogue, 1, named)[0] == "2 <- revoke", "worker 1 has dropped it"
        for _ in range(8):
            broken(dialogue, 1, named)
        assert state_of(dialogue)["w1"] == "refused"
