"""Deaths of workers by a fault: when the job fails, when one worker is sent away, what never counts."""

from __future__ import annotations

import signal

import pytest

from aggregator.core import events as ev
from aggregator.core.leasing.deaths import MOST_DEATHS
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

FAULT = "SIGSEGV in forward at layer.py:42"


class Killed:
    """Workers that die and start again, each by its name."""

    def __init__(self, *names: str, dialogue: Dialogue | None = None) -> None:
        numbers = range(1, len(names) + 1)
        self.dialogue = dialogue or training(*numbers)
        self.sessions = dict(zip(names, numbers, strict=True))
        self.starts = 0

    def dies(
        self, name: str, number: int = signal.SIGSEGV, *, job: str = "a", come_back: bool = True
    ) -> list[str]:
        """End a worker's process and start it again: it reports the end, builds the job and gets its weights."""
        dialogue, session = self.dialogue, self.sessions[name]
        incarnation = dialogue.core.members[session].incarnation
        dialogue.give(ev.WorkerLost(session, "gone"))
        self.starts += 1
        self.sessions[name] = session = 100 + self.starts
        predecessor = pb.Predecessor(incarnation=incarnation, signal=number, job=job, lease=1, text=FAULT)
        lines = dialogue.hello(session, name, predecessor=predecessor)
        if come_back and dialogue.run is not None:
            dialogue.give(ev.DataStreamOpened(session))
            version = dialogue.run.progress.version
            dialogue.ready(session, holds=tuple(version) if version else None)
        return lines


def test_a_job_that_kills_its_workers_fails_with_what_killed_them() -> None:
    killed = Killed("w1", "w2")
    killed.dies("w1")
    killed.dies("w2")
    assert killed.dialogue.job().state == RUNNING
    killed.dies("w1")
    job = killed.dialogue.job()
    assert job.state == FAILED
    assert (
        job.detail
        == f"workers w1, w2 died 3 times while computing job a, with no step between; the last: {FAULT}"
    )
    assert any(f"worker w2 died while computing the job: {FAULT}" in note for note in killed.dialogue.notes)


def test_the_only_worker_that_dies_again_and_again_ends_the_job() -> None:
    killed = Killed("w1")
    for _ in range(MOST_DEATHS):
        killed.dies("w1")
    assert killed.dialogue.job().state == FAILED and "w1: it died 3 times" in killed.dialogue.job().detail


def test_deaths_that_one_voice_tells_of_end_no_job_that_others_can_run() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    for session in range(1, MOST_DEATHS + 2):
        killer = pb.Predecessor(incarnation=f"i{session - 1}", signal=signal.SIGSEGV, job="a", text=FAULT)
        dialogue.hello(session, "w1", voice="w1", predecessor=killer)
        if session <= MOST_DEATHS:
            dialogue.give(ev.WorkerLost(session, "gone"))
    assert dialogue.job().state == RUNNING
    waiting = dialogue.describe_wait()
    assert has_facts(waiting, "waits for another worker: it ends in 120 s ... w1: it died 3 times")
    assert dialogue.joins(9)[-1] == "9 <- initialise"


def test_one_worker_that_dies_while_others_compute_is_sent_away() -> None:
    killed = Killed("w1", "w2")
    for _ in range(MOST_DEATHS):
        lines = killed.dies("w1")
    assert killed.dialogue.job().state == RUNNING
    assert len(lines) == 2 and "leave: it died 3 times" in lines[1] and FAULT in lines[1]
    assert not any("join" in line for line in killed.dies("w1")), "it stays away"


def test_death_while_the_job_is_built_counts() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    killed = Killed("w1", dialogue=dialogue)
    for _ in range(MOST_DEATHS):
        killed.dies("w1", come_back=False)
    assert dialogue.job().state == FAILED


def test_a_commit_between_deaths_clears_them() -> None:
    killed = Killed("w1")
    for step in range(3):
        killed.dies("w1")
        killed.dies("w1")
        killed.dialogue.commits(1, step)
        killed.dialogue.weights(1, step + 1, 0)
        killed.dialogue.weights_loaded(killed.sessions["w1"], 1, step + 1)
    assert killed.dialogue.job().state == RUNNING


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, 999])
def test_deaths_by_others_never_count(number: int) -> None:
    killed = Killed("w1")
    for _ in range(3 * MOST_DEATHS):
        killed.dies("w1", number)
    assert killed.dialogue.job().state == RUNNING


def test_deaths_at_another_job_never_count() -> None:
    killed = Killed("w1")
    for _ in range(3 * MOST_DEATHS):
        killed.dies("w1", job="b")
    assert killed.dialogue.job().state == RUNNING


def test_a_lost_link_never_counts() -> None:
    dialogue = training(1)
    for session in range(2, 20):
        dialogue.give(ev.WorkerLost(session - 1, "link"))
        dialogue.hello(session, "w1", incarnation="i1")
    assert dialogue.job().state == RUNNING


def test_one_death_that_is_reported_again_and_again_counts_once() -> None:
    killed = Killed("w1")
    killed.dies("w1")
    dialogue = killed.dialogue
    for session in range(200, 210):
        predecessor = pb.Predecessor(incarnation="i1", signal=signal.SIGSEGV, job="a", text=FAULT)
        dialogue.give(ev.WorkerLost(session - 1 if session > 200 else killed.sessions["w1"], "link"))
        dialogue.hello(session, "w1", incarnation="new", predecessor=predecessor)
    assert dialogue.job().state == RUNNING


def test_a_worker_without_a_lease_that_dies_does_not_count() -> None:
    killed = Killed("w1", "w2")
    for _ in range(3 * MOST_DEATHS):
        run = killed.dialogue.run
        assert run is not None
        run.lease_book.clear_step()  # no step is under way
        killed.dies("w1")
    assert killed.dialogue.job().state == RUNNING


def test_the_report_of_a_peer_is_shown_as_one_short_line() -> None:
    killed = Killed("w1")
    long = pb.Predecessor(incarnation="i1", signal=signal.SIGSEGV, job="a", text="\x1b[31m" * 1000)
    killed.dialogue.give(ev.WorkerLost(1, "gone"))
    killed.dialogue.hello(9, "w1", predecessor=long)
    assert all(len(note) <= 300 and note.isprintable() for note in killed.dialogue.notes)
