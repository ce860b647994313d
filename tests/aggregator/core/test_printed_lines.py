"""Lines that a job's code prints on its workers: in the job's log, within limits that hold for liars too."""

from __future__ import annotations

import pytest

from aggregator.core import printed_lines
from protos import cluster_pb2 as pb
from services.protocol.bounds import PRINTED_BURST_LINES, PRINTED_LINES_A_SECOND
from tests.support.dialogues.aggregator import Dialogue, training


def printed(dialogue: Dialogue) -> list[str]:
    """Return the printed lines in the logs so far."""
    return [note.text for note in dialogue.published if note.kind == "printed"]


def prints(dialogue: Dialogue, session: int, *lines: str, job: str = "a") -> None:
    dialogue.says(session, pb.Printed(job=job, lines=lines))


def test_they_are_in_the_job_s_log_with_the_worker_s_name() -> None:
    dialogue = training(1, 2)
    prints(dialogue, 1, "loss is odd", "  still")
    prints(dialogue, 2, "hello")
    assert printed(dialogue) == ["worker w1: loss is odd", "worker w1:   still", "worker w2: hello"]
    assert {note.job.id for note in dialogue.published if note.kind == "printed"} == {"a"}


def test_those_of_another_job_or_of_no_job_are_in_no_log() -> None:
    dialogue = training(1)
    prints(dialogue, 1, "lie", job="b")
    dialogue.hello(2)
    dialogue.cancel()
    prints(dialogue, 1, "late")
    prints(dialogue, 2, "idle")
    assert printed(dialogue) == []


def test_a_worker_that_floods_is_cut_off_and_another_is_heard() -> None:
    dialogue = training(1, 2)
    for _ in range(100):
        prints(dialogue, 1, *["x"] * 64)
    assert len(printed(dialogue)) == PRINTED_BURST_LINES
    prints(dialogue, 2, "hello")
    assert printed(dialogue)[-1] == "worker w2: hello"
    dialogue.goes_by(1.0, 1, 2)
    assert printed(dialogue)[-1] == f"worker w1: ({6400 - PRINTED_BURST_LINES} lines left out)"
    prints(dialogue, 1, *["y"] * 64)
    assert printed(dialogue).count("worker w1: y") == PRINTED_LINES_A_SECOND
    dialogue.goes_by(1.0, 1, 2)
    left_out = 64 - PRINTED_LINES_A_SECOND
    assert printed(dialogue)[-1] == f"worker w1: ({left_out} lines left out)", "it was told of the others"


def test_many_workers_print_no_more_than_a_few() -> None:
    sessions = range(1, 11)
    dialogue = training(*sessions)
    for session in sessions:
        for _ in range(10):
            prints(dialogue, session, *["x"] * 64)
    assert len(printed(dialogue)) == printed_lines.WORKERS * PRINTED_BURST_LINES


def test_a_run_prints_so_many_lines_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed_lines, "LINES_IN_ALL", 3)
    dialogue = training(1)
    prints(dialogue, 1, *"abcde")
    dialogue.goes_by(10.0, 1)
    prints(dialogue, 1, "f")
    last = "3 lines were printed: later ones are in the logs of the workers only"
    assert printed(dialogue) == ["worker w1: a", "worker w1: b", "worker w1: c", last]


def test_a_worker_that_was_refused_prints_nothing() -> None:
    dialogue = training(1, 2)
    dialogue.says(1, pb.Failure(job="a", reason="no"))
    prints(dialogue, 1, "more")
    assert printed(dialogue) == []
