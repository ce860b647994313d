"""The first rows of a job: they follow from the names of the workers that run, not from who comes first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core import events as ev
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.rows import RowDialogue
from tests.support.facts import has_facts

RETRY, TICK = STANDARD_TIMEOUTS.retry, STANDARD_TIMEOUTS.tick
FIRST_SESSION = 8
"""So that numbers in names have one digit or two."""


def connect(dialogue: RowDialogue, session: int) -> None:
    dialogue.hello(session, pipeline_address=f"host{session}:1")


def rows_of(dialogue: RowDialogue) -> list[list[str]]:
    """Return the names in each row, in the order of the stages; the rows in the order of their first names."""
    rows: dict[int, dict[int, str]] = {}
    for each in dialogue.status().workers:
        if each.stages:
            rows.setdefault(each.row, {})[each.first_stage] = each.name
    return sorted(
        ([row[stage] for stage in sorted(row)] for row in rows.values()), key=lambda row: int(row[0][1:])
    )


@settings(max_examples=60, deadline=None)
@given(stages=st.integers(2, 4), pipelines=st.integers(1, 3), data=st.data())
def test_workers_in_any_order_make_the_same_rows_if_all_come_within_the_wait(
    stages: int, pipelines: int, data: st.DataObject
) -> None:
    workers = range(FIRST_SESSION, FIRST_SESSION + stages * pipelines)
    dialogue = RowDialogue(stages)
    moments = data.draw(st.permutations([*workers, *workers, 0]))  # a Hello and a data stream each; 0 submits
    connected: set[int] = set()
    for session in moments:
        dialogue.now += RETRY / len(moments)
        if session == 0:
            dialogue.submit(stages=stages, pipelines=pipelines)
        elif session in connected:
            dialogue.give(ev.DataStreamOpened(session))
        else:
            connected.add(session)
            connect(dialogue, session)
    assert dialogue.told == {session: StageRun(rank % stages, 1) for rank, session in enumerate(workers)}, (
        "rank r has stage r % p, as in tt-train"
    )
    for session in data.draw(st.permutations(workers)):
        dialogue.builds(session)
    names = [f"w{session}" for session in workers]
    assert rows_of(dialogue) == [names[first : first + stages] for first in range(0, len(names), stages)]


def test_workers_that_are_connected_wait_for_the_data_streams_of_all() -> None:
    dialogue = RowDialogue()
    for session in range(1, 7):
        connect(dialogue, session)
    dialogue.submit(stages=2, pipelines=2)
    for session in (6, 5, 4, 3, 2):
        assert dialogue.give(ev.DataStreamOpened(session)) == []
    dialogue.give(ev.DataStreamOpened(1))
    assert rows_of(dialogue) == [["w1", "w2"], ["w3", "w4"], ["w5", "w6"]]


def test_a_worker_whose_data_stream_does_not_open_is_waited_for_within_a_bound() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    connect(dialogue, 1)
    for session in (3, 2):
        assert dialogue.arrives(session) == []
    assert dialogue.goes_by(RETRY, 1, 2, 3) == []
    assert dialogue.goes_by(TICK, 1, 2, 3) and rows_of(dialogue) == [["w2", "w3"]]
    assert dialogue.give(ev.DataStreamOpened(1)) == [], "it is a spare"


def test_a_worker_that_connects_again_and_again_does_not_delay_the_others() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2, pipelines=2)
    for session in (2, 1):
        dialogue.arrives(session)
    told = 0.0
    for session in range(10, 20):
        connect(dialogue, session)
        dialogue.goes_by(TICK, 1, 2, session)
        told += TICK
        if dialogue.told:
            break
        dialogue.give(ev.WorkerLost(session, "gone"))
    assert dialogue.told == {1: StageRun(0, 1), 2: StageRun(1, 1)} and RETRY < told <= RETRY + TICK


def test_workers_that_have_been_connected_for_long_wait_for_no_others() -> None:
    dialogue = RowDialogue()
    for session in (3, 2, 1):
        dialogue.arrives(session)
    dialogue.goes_by(RETRY, 1, 2, 3)
    dialogue.goes_by(TICK, 1, 2, 3)
    dialogue.submit(stages=2, pipelines=2)
    assert rows_of(dialogue) == [["w1", "w2"]]
    dialogue.arrives(4)
    assert rows_of(dialogue) == [["w1", "w2"], ["w3", "w4"]]


def test_after_a_restart_of_the_aggregator_the_rows_are_those_before() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2, pipelines=2)
    for session in (2, 3, 4, 1):
        dialogue.arrives(session, StageRun(1 - session % 2, 1))
    assert dialogue.told == {each: StageRun(1 - each % 2, 1) for each in (1, 2, 3, 4)}
    assert rows_of(dialogue) == [["w1", "w2"], ["w3", "w4"]]


def test_what_is_waited_for_is_said() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2, pipelines=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    for session in (1, 2):
        dialogue.arrives(session)
    connect(dialogue, 3)
    dialogue.now += 1.0
    said = dialogue.describe_wait() or ""
    assert has_facts(said, "waits for workers ... 2 of 4 (num_workers) are there; for 3 s at most")
