"""Which lines the core marks for the target of a job's `notify`."""

from __future__ import annotations

from aggregator.core import events as ev
from aggregator.core.events import NoticeKind
from protos import cluster_pb2 as pb
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, training


def marked(dialogue: Dialogue) -> list[tuple[NoticeKind, str]]:
    return [(each.tells, each.text) for each in dialogue.published if each.tells is not None]


def test_a_normal_job_marks_nothing() -> None:
    dialogue = training(1, 2)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0, 1.0))
    dialogue.chunk(2, 1, 0, 0, losses=(1.0, 1.0))
    dialogue.commits(1, 0)
    assert dialogue.published and not marked(dialogue)


def test_lost_workers_and_stalls_are_marked() -> None:
    dialogue = training(1, 2)
    dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1, 2)
    dialogue.computed(2)
    dialogue.later(1.0, 1, 2)  # worker 2 is idle, and gets what worker 1 had
    dialogue.give(ev.WorkerLost(2, "its process ended"))
    dialogue.give(ev.OptimizerLost("no route"))
    found = marked(dialogue)
    assert {kind for kind, text in found if "stalled on step 0" in text} == {NoticeKind.STALLED}
    assert (NoticeKind.WORKER_LOST, "worker w2 is gone: its process ended") in found
    assert found[-1][0] is NoticeKind.STALLED and found[-1][1].endswith("is gone: no route")


def test_skipped_steps_and_missed_checkpoints_are_marked() -> None:
    dialogue = training(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    dialogue.give(ev.FromOptimizer(pb.Commit(job="a", generation=1, step=0, applied=False)))
    dialogue.give(
        ev.FromOptimizer(pb.CheckpointMissed(job="a", generation=1, step=1, reason="the disk is full"))
    )
    assert [kind for kind, _ in marked(dialogue)] == [NoticeKind.NON_FINITE, NoticeKind.DISK_LOW]
