"""Deaths of compute processes: when the job fails, when one worker is sent away, what never counts."""

from __future__ import annotations

from aggregator.core import events as ev
from aggregator.core.leasing.deaths import MOST_DEATHS
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts

CRASH = "the compute process died: killed by SIGSEGV"


def dies(dialogue: Dialogue, session: int, *, lease: int | None = None, reason: str = CRASH) -> list[str]:
    """Report that the compute process of a worker has died with its newest lease, or another; 0 for none."""
    lease = dialogue.leases[session] if lease is None else lease
    build = 0 if lease else dialogue.core.members[session].builds
    return dialogue.says(session, pb.Failure(job="a", lease=lease, reason=reason, died=True, build=build))


def building(*sessions: int) -> Dialogue:
    """Return a cluster whose workers build a job."""
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    for session in sessions:
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    return dialogue


def test_the_lease_goes_back_at_once_and_the_worker_stays() -> None:
    dialogue = training(1)
    assert dies(dialogue, 1) == ["1 <- window 1", "1 <- train 0-3 of 1.0"]
    assert f"worker w1: its compute process died: {CRASH}" in dialogue.notes[-1]
    assert dialogue.job().state == RUNNING


def test_a_death_that_is_told_twice_counts_once() -> None:
    dialogue = building(1)
    failure = pb.Failure(job="a", reason=CRASH, died=True, build=dialogue.core.members[1].builds)
    dialogue.says(1, failure)
    for _ in range(MOST_DEATHS):
        assert dialogue.says(1, failure) == []
    assert dialogue.job().state == RUNNING


def test_a_job_that_kills_compute_processes_fails_with_the_last_reason() -> None:
    dialogue = training(1, 2)
    dies(dialogue, 1)
    dies(dialogue, 2)
    assert dialogue.job().state == RUNNING
    dies(dialogue, 1, reason="killed by SIGBUS")
    job = dialogue.job()
    assert job.state == FAILED
    assert job.detail == (
        "compute processes of workers w1, w2 died 3 times while computing job a, with no step between; the last: "
        "killed by SIGBUS"
    )


def test_the_same_work_may_kill_two_before_the_job_is_at_fault() -> None:
    dialogue = training(1, 2)
    first = dialogue.leases[1]
    dies(dialogue, 1, lease=first)
    dialogue.computed(2)
    dies(dialogue, 2, lease=dialogue.leases[2])
    assert dialogue.job().state == RUNNING


def test_the_only_worker_whose_processes_die_ends_the_job() -> None:
    dialogue = training(1)
    for _ in range(MOST_DEATHS):
        dies(dialogue, 1)
    assert dialogue.job().state == FAILED
    assert has_facts(dialogue.job().detail, f"w1: its compute process died 3 times ... the last: {CRASH}")


def test_one_worker_whose_processes_die_while_others_live_is_excluded() -> None:
    dialogue = training(1, 2)
    for _ in range(MOST_DEATHS):
        lines = dies(dialogue, 1)
    assert dialogue.job().state == RUNNING
    assert any("1 <- leave: its compute process died 3 times" in line and CRASH in line for line in lines)
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert not any("join" in line for line in dialogue.hello(3, "w1", incarnation="i1")), "it stays away"
    dialogue.give(ev.WorkerLost(3, "gone"))
    assert any("join" in line for line in dialogue.hello(4, "w1")), "until it is restarted"
    assert dialogue.job().state == RUNNING
    dies(dialogue, 2)
    assert dialogue.job().state == FAILED, "the job kills the next one, too"


def test_one_voice_ends_no_job_that_others_can_run() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    dialogue.hello(1, "w1", voice="w1")
    for _ in range(MOST_DEATHS):
        dies(dialogue, 1, lease=0)
    assert dialogue.job().state == RUNNING
    assert has_facts(
        dialogue.describe_wait(),
        "waits for another worker: it ends in 120 s ... compute process died 3 times",
    )
    assert dialogue.joins(9)[-1] == "9 <- initialise"


def test_a_worker_whose_process_died_of_a_build_builds_again() -> None:
    dialogue = building(1, 2)
    assert dies(dialogue, 1, lease=0) == ["1 <- join"]
    dies(dialogue, 2, lease=0)
    assert dialogue.job().state == RUNNING
    dies(dialogue, 1, lease=0)
    assert dialogue.job().state == FAILED


def test_a_process_that_died_of_loading_weights_gives_all_leases_back() -> None:
    dialogue = training(1, 2)
    lines = dies(dialogue, 1, lease=0)
    assert "1 <- join" in lines
    assert dialogue.ready(1, holds=(1, 0)) == ["1 <- window 1", "1 <- train 0-1 of 1.0"]


def test_a_commit_between_deaths_clears_them() -> None:
    dialogue = training(1)
    for step in range(3):
        dies(dialogue, 1)
        dies(dialogue, 1)
        dialogue.commits(1, step)
        dialogue.weights(1, step + 1, 0)
        dialogue.weights_loaded(1, 1, step + 1)
    assert dialogue.job().state == RUNNING


def test_a_death_of_a_void_lease_never_counts() -> None:
    dialogue = training(1)
    first = dialogue.leases[1]
    for _ in range(3 * MOST_DEATHS):
        dies(dialogue, 1, lease=first)
    assert dialogue.job().state == RUNNING


def test_a_worker_that_is_lost_again_and_again_never_counts() -> None:
    """It may have been killed by a person, and its link by anything."""
    dialogue = training(1)
    for session in range(2, 20):
        dialogue.give(ev.WorkerLost(session - 1, "link"))
        dialogue.hello(session, "w1")
        dialogue.give(ev.DataStreamOpened(session))
        dialogue.ready(session, holds=(1, 0))
    assert dialogue.job().state == RUNNING


def test_the_report_of_a_peer_is_shown_as_one_short_line() -> None:
    dialogue = training(1, 2)
    for session in (1, 2, 1):
        dies(dialogue, session, reason="x" * 1000)
    assert len(dialogue.job().detail) < 400
