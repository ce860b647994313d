"""Workers that read a job's inputs from the aggregator: named among the waits, and given up if they get no further."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from aggregator.core.cluster_status import find_waits
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, Member
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue

MB = 1_000_000


def building() -> Dialogue:
    """Return a cluster with a worker that builds a job."""
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    return dialogue


def fetches(dialogue: Dialogue, here_mb: int, problem: str = "", *, local: bool = False) -> None:
    dialogue.says(
        1,
        pb.Fetching(
            job="a",
            input="training_config.data_path",
            bytes=here_mb * MB,
            size=5000 * MB,
            problem=problem,
            local=local,
        ),
    )


def waits(dialogue: Dialogue) -> list[tuple[str, float]]:
    found = find_waits(dialogue.core, dialogue.now)
    return [(each.what, each.seconds) for each in found if each.role == "worker"]


def member(dialogue: Dialogue) -> Member:
    (found,) = dialogue.status().workers
    return found


def test_what_a_worker_fetches_is_named_among_the_waits() -> None:
    dialogue = building()
    dialogue.goes_by(10.0, 1)
    fetches(dialogue, 1200)
    text = "to fetch training_config.data_path from the aggregator, 1,200 of 5,000 MB"
    assert waits(dialogue) == [(text, 10.0)]
    fetches(dialogue, 1200, "No space left on device")
    assert waits(dialogue) == [(f"{text}: No space left on device", 10.0)]
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1)
    assert waits(dialogue) == []


def test_what_a_worker_reads_on_its_own_host_is_named_too() -> None:
    dialogue = building()
    dialogue.goes_by(10.0, 1)
    fetches(dialogue, 1200, local=True)
    assert waits(dialogue) == [("to read training_config.data_path on its own host, 1,200 of 5,000 MB", 10.0)]


@pytest.mark.parametrize("local", [False, True])
def test_a_worker_that_gets_on_is_never_too_slow(local: bool) -> None:
    dialogue = building()
    fetches(dialogue, 5000)
    for here_mb in range(8):
        fetches(dialogue, here_mb + (0 if local else 5000), local=local)
        dialogue.goes_by(STANDARD_TIMEOUTS.stall / 2, 1)
    assert member(dialogue).state != "unfit"


def test_a_worker_that_gets_no_further_is_unfit_until_it_does() -> None:
    dialogue = building()
    fetches(dialogue, 1200)
    for _ in range(3):
        dialogue.goes_by(STANDARD_TIMEOUTS.stall / 2, 1)
        fetches(dialogue, 1200, "the disk is full")
    assert member(dialogue).state == "unfit"
    assert "no further with training_config.data_path" in member(dialogue).detail
    assert "the disk is full" in member(dialogue).detail
    fetches(dialogue, 1201)
    assert member(dialogue).state != "unfit"


def test_a_job_whose_workers_get_no_further_fails_in_the_end() -> None:
    dialogue = building()
    fetches(dialogue, 0, "the disk is full")
    dialogue.goes_by(STANDARD_TIMEOUTS.stall + STANDARD_TIMEOUTS.unfit + 20, 1)
    assert dialogue.job().state == FAILED and "the disk is full" in dialogue.job().detail


def test_a_worker_that_fails_to_fetch_again_and_again_does_not_keep_the_job_waiting() -> None:
    dialogue = building()
    ends = dialogue.now + STANDARD_TIMEOUTS.unfit + 60
    while dialogue.now < ends:
        fetches(dialogue, 700, "file 0123: not here")  # a first input is there, the second one missing
        dialogue.says(1, pb.Failure(job="a", reason="no such file on this host", retries=True))
        dialogue.goes_by(20.0, 1)
    assert dialogue.job().state == FAILED and "no such file" in dialogue.job().detail


def test_a_report_of_a_ready_worker_changes_nothing() -> None:
    dialogue = building()
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.ready(1)
    before = member(dialogue)
    fetches(dialogue, 7)
    assert member(dialogue) == before and waits(dialogue) == []
