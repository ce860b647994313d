"""Dialogues about `min_workers` of a job with a pipeline, which counts workers and not rows."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.rows import RowDialogue, too_large, training_rows
from tests.support.facts import has_facts

SHARE_AFTER = STANDARD_TIMEOUTS.deaf + 2.5


def waits_for(dialogue: RowDialogue) -> str:
    return dialogue.describe_wait() or ""


def test_spares_count() -> None:
    dialogue = training_rows(1, 2, min_workers=3)
    assert not dialogue.leases
    assert has_facts(waits_for(dialogue), "2 of the 3 ... min_workers")
    dialogue.arrives(3)
    dialogue.goes_by(1.0, 1, 2, 3)
    assert dialogue.leases[1] == dialogue.leases[2]


def test_spares_that_no_row_can_use_do_not_count() -> None:
    dialogue = training_rows(1, 2, min_workers=3)
    dialogue.hello(3)
    dialogue.give(ev.DataStreamOpened(3))
    too_large(dialogue, 3, StageRun(0, 2))
    dialogue.goes_by(1.0, 1, 2, 3)
    assert not dialogue.leases
    assert has_facts(waits_for(dialogue), "2 of the 3 ... missing: w3 (it listens on loopback")


def test_two_rows_are_waited_for() -> None:
    dialogue = training_rows(1, 2, 3, min_workers=4, pipelines=2)
    dialogue.goes_by(SHARE_AFTER, 1, 2, 3)
    assert not dialogue.leases
    dialogue.arrives(4)
    for session in (1, 2, 3, 4):
        dialogue.builds(session, holds=(1, 0))
    assert dialogue.leases[1] == dialogue.leases[2] != dialogue.leases[3] == dialogue.leases[4]


def test_a_job_that_begins_waits_for_a_worker_for_each_stage() -> None:
    dialogue = training_rows(1, min_workers=2)
    dialogue.goes_by(SHARE_AFTER, 1)
    assert dialogue.told == {1: StageRun(0, 1)}
    dialogue.builds(1)
    assert dialogue.arrives(2) == ["2 <- join stage 1"], "worker 1 keeps what it has built"


def test_without_a_lost_worker_its_neighbour_builds_nothing_that_it_could_not_use() -> None:
    dialogue = training_rows(1, 2, min_workers=2)
    assert dialogue.leases
    dialogue.give(ev.WorkerLost(2, "gone"))
    assert dialogue.goes_by(2 * SHARE_AFTER, 1) == []
    assert has_facts(waits_for(dialogue), "1 of the 2 ... min_workers ... w2 (gone)")
    assert dialogue.arrives(3) == ["3 <- join stage 1"]


def test_stages_that_need_more_workers_than_max_workers_get_those_that_could_not_open_a_mesh() -> None:
    dialogue = RowDialogue(2)
    dialogue.optimizer()
    dialogue.submit(stages=2, max_workers=1)
    dialogue.arrives(1)
    dialogue.goes_by(SHARE_AFTER, 1)
    too_large(dialogue, 1)
    dialogue.arrives(2)
    dialogue.says(2, pb.Failure(job="a", reason="the mesh can't be opened", retries=True))
    dialogue.submit("b", max_workers=1)
    assert dialogue.core.members[2].job == "b"
    dialogue.cancel("b")
    assert [each.job for each in dialogue.core.members.values()] == ["a", "a"]
