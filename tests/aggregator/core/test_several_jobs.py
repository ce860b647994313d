"""Dialogues about several jobs that run at once: what is of one job never touches another."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import pytest

from aggregator.core import events as ev
from aggregator.core.job_report import Record
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduling.host_memories import ToldMemory
from aggregator.core.scheduling.room import RoleNeed
from aggregator.core.setting_aside import MOST_CRASHES
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, QUEUED, RUNNING, Job
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.protocol.plan import JobPlan
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, arrived


def two_jobs(*, workers: int = 2, **plan: float) -> Dialogue:
    """Return jobs a and b in their first steps, each with half of the workers."""
    dialogue = Dialogue()
    dialogue.optimizer()
    for job in "ab":
        dialogue.submit(job, **{"max_workers": workers // 2, **plan})
    for session in range(1, workers + 1):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
        job = dialogue.core.members[session].job
        dialogue.ready(session, holds=(1, 0), job=job)
    for job in "ab":
        dialogue.stands(1, 0, job=job)
        for member in list(dialogue.core.members.values()):
            if member.job == job:
                dialogue.weights_loaded(member.session, 1, 0, job=job)
    return dialogue


def jobs_of(dialogue: Dialogue) -> str:
    """Return the job of each worker, in the order of their sessions."""
    return "".join(each.job or "-" for each in dialogue.core.members.values())


def test_two_jobs_share_the_workers_and_each_has_its_own_step() -> None:
    dialogue = two_jobs()
    assert jobs_of(dialogue) == "ab"
    assert dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4) == ["keep 0-3 #0", "forward #0"]
    assert dialogue.chunk(2, 1, 0, 0, losses=(2.0,) * 4, job="b") == ["keep 0-3 #0", "forward #0"]
    dialogue.commits(1, 0, job="b")
    assert (dialogue.job("a").step, dialogue.job("b").step) == (0, 1)
    dialogue.commits(1, 0)
    assert (dialogue.job("a").loss, dialogue.job("b").loss) == (1.0, 2.0)
    assert list(dialogue.status().running_jobs) == ["a", "b"]


def test_a_workers_chunk_of_another_job_than_it_serves_is_stale() -> None:
    dialogue = two_jobs()
    assert dialogue.chunk(1, 1, 0, 0, lease=dialogue.leases[2], losses=(1.0,) * 4, job="b") == []
    assert dialogue.computed(1, lease=dialogue.leases[2], job="b") == []
    assert dialogue.says(1, pb.Failure(job="b", reason="mine")) == []
    assert dialogue.job("b").state == RUNNING and jobs_of(dialogue) == "ab"


def test_an_error_in_a_jobs_part_begins_that_job_again_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = two_jobs()
    lease = dialogue.leases[2]
    run = dialogue.core.runs["a"]
    monkeypatch.setattr(run.lease_results, "record_computed", lambda *_: 1 / 0)
    lines = dialogue.computed(1)
    assert lines[0] == "save a running" and "optimizer <- Close" in lines
    assert dialogue.core.runs["a"] is not run, "it runs again"
    assert lines.index("1 <- leave: " + dialogue.notes[-2]) < lines.index("1 <- join")
    assert "ZeroDivisionError" in dialogue.job("a").crash.reason
    assert dialogue.leases[2] == lease and not dialogue.job("b").HasField("crash")
    assert dialogue.chunk(2, 1, 0, 0, losses=(2.0,) * 4, job="b") == ["keep 0-3 #0", "forward #0"]


METHODS = [
    name
    for name, _ in inspect.getmembers(RunningJob, inspect.isfunction)
    if not name.startswith("_") and name != "close"  # by which a job begins again
]


@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_any_method_of_a_run_stays_in_its_job(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(RunningJob, method)

    def failing(self: RunningJob, *arguments: Any, **named: Any) -> Any:
        if self.job.id == "a":
            raise IndexError("list index out of range")
        return original(self, *arguments, **named)

    dialogue = two_jobs(workers=4, verify_fraction=1.0)
    other = dialogue.core.runs["b"]
    monkeypatch.setattr(RunningJob, method, failing)
    header = ChunkHeader(job="a", epoch=3, generation=1, lease=dialogue.leases[1], kind=GRADIENT)
    for event in (
        arrived(1, dialogue.whole(header, 0)),
        ev.FromWorker(1, 3, pb.Computed(job="a", lease=dialogue.leases[1])),
        ev.FromOptimizer(pb.Commit(job="a", generation=1)),
        ev.FromOptimizer(pb.OptimizerStatus(job="a", generation=2, state=pb.OptimizerStatus.TRAINING)),
        ev.MessageRefused("a", "too large"),
    ):
        dialogue.give(event)
    dialogue.submit("c", max_workers=1)
    dialogue.hello(9)
    for request in (ev.TrustRequested("a", "w1"), ev.PauseRequested("a"), ev.ResumeRequested("a")):
        dialogue.give(request)
    dialogue.goes_by(20, 1, 2, 3, 4, 9)
    dialogue.give(ev.PauseRequested("a"))
    dialogue.give(ev.OptimizerLost("gone"))
    dialogue.optimizer()
    dialogue.goes_by(STANDARD_TIMEOUTS.stall + 5, 1, 2, 3, 4, 9)
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.cancel()
    assert dialogue.core.runs["b"] is other and not dialogue.job("b").HasField("crash")


def test_a_job_that_can_not_be_started_ends_and_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RunningJob.__init__

    def failing(self: RunningJob, record: Record, *arguments: Any, **named: Any) -> None:
        if record.job.id == "a":
            raise IndexError("list index out of range")
        original(self, record, *arguments, **named)

    monkeypatch.setattr(RunningJob, "__init__", failing)
    dialogue = Dialogue()
    assert "save a failed" in dialogue.submit("a")
    assert "the aggregator can't start this job: internal error, IndexError" in dialogue.saved["a"].job.detail
    dialogue.submit("b")
    dialogue.goes_by(5)
    assert list(dialogue.core.runs) == ["b"]


def test_a_job_whose_part_fails_at_the_same_step_again_and_again_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialogue = two_jobs()
    for _ in range(MOST_CRASHES):
        monkeypatch.setattr(dialogue.core.runs["a"], "tick", lambda now: 1 / 0)
        dialogue.later(1.25, 1, 2)
    assert dialogue.saved["a"].job.state == FAILED
    assert "the aggregator failed 3 times while it ran this job" in dialogue.saved["a"].job.detail
    assert list(dialogue.core.runs) == ["b"] and dialogue.job("b").state == RUNNING


def test_a_worker_leaves_for_another_job_at_the_commit_of_its_leases() -> None:
    dialogue = two_jobs(workers=4, min_workers=1)
    assert jobs_of(dialogue) == "abab"
    dialogue.submit("c", priority=5, min_workers=1, max_workers=1)
    assert jobs_of(dialogue) == "abab", "each works on a step"
    leaving = next(each for each in dialogue.core.members.values() if each.leaving_since_seconds is not None)
    assert leaving.job == "b", "a is older"
    for session in (2, 4):
        dialogue.computed(session, job="b")
        dialogue.chunk(session, 1, 0, 0, losses=(1.0, 1.0), job="b")
    lines = dialogue.commits(1, 0, job="b")
    assert f"{leaving.session} <- leave: it serves job c now" in lines
    assert f"{leaving.session} <- join" in lines
    (other,) = {2, 4} - {leaving.session}
    assert "train 0-3 of 1.1" in "".join(lines + dialogue.weights_loaded(other, 1, 1, job="b")), (
        "b goes on without it"
    )


def test_a_step_that_does_not_end_keeps_a_worker_no_longer_than_a_stall() -> None:
    dialogue = two_jobs(workers=4, min_workers=1)
    dialogue.submit("c", priority=5, min_workers=1, max_workers=1)
    dialogue.goes_by(STANDARD_TIMEOUTS.stall - 2.5, 1, 2, 3, 4)
    assert "c" not in jobs_of(dialogue)
    dialogue.goes_by(5, 1, 2, 3, 4)
    assert jobs_of(dialogue).count("c") == 1


def test_a_worker_that_a_job_refuses_serves_another() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a")
    dialogue.joins(1)
    dialogue.hello(2)
    dialogue.give(ev.DataStreamOpened(2))
    assert jobs_of(dialogue) == "aa"
    dialogue.ready(2, blas="other")
    assert jobs_of(dialogue) == "aa", "there is no other job; the first may go on with it"
    dialogue.submit("b")
    assert jobs_of(dialogue) == "ab"


def test_workers_of_a_job_that_ends_go_to_the_others() -> None:
    dialogue = two_jobs(workers=4, max_workers=4)
    dialogue.cancel("a")
    assert jobs_of(dialogue) == "bbbb"


def test_a_job_that_the_aggregator_does_not_run_is_closed_where_it_is_open() -> None:
    dialogue = two_jobs()
    assert dialogue.stands(3, 7, job="z") == ["optimizer <- Close"]
    assert dialogue.core.runs.keys() == {"a", "b"}


def test_a_restart_resumes_all_jobs_that_ran() -> None:
    before = two_jobs()
    dialogue = Dialogue(epoch=4, records=[before.saved["a"], before.saved["b"]])
    assert dialogue.give(ev.Ticked()) == ["save a running", "save b running"]
    dialogue.optimizer()
    dialogue.hello(1, job="a")
    dialogue.hello(2, job="b")
    assert jobs_of(dialogue) == "ab"


def test_no_more_jobs_run_at_once_than_the_operator_allows() -> None:
    dialogue = Dialogue(max_running_jobs=2)
    for job in "abc":
        dialogue.submit(job, max_workers=1)
    for session in range(1, 5):
        dialogue.hello(session)
    assert list(dialogue.core.runs) == ["a", "b"] and dialogue.job("c").state == QUEUED
    dialogue.later(1.25, 1, 2, 3, 4)
    assert "2 jobs may run at a time" in dialogue.core.assignments.waits["c"].reason


def test_the_caps_on_workers_count_by_person() -> None:
    dialogue = Dialogue(max_workers_per_person=2)
    for job, owner in (("a", "ann"), ("b", "ann"), ("c", "bob")):
        dialogue.submit(job, owner=owner, max_workers=2)
    for session in range(1, 5):
        dialogue.hello(session)
    assert jobs_of(dialogue) == "acac"
    assert "workers_per_person" in dialogue.core.assignments.waits["b"].reason


def test_a_job_that_has_all_it_can_use_leaves_workers_idle() -> None:
    dialogue = Dialogue()
    dialogue.submit(max_workers=1)
    for session in (1, 2):
        dialogue.hello(session)
    assert jobs_of(dialogue) == "a-"
    dialogue.later(1.25, 1, 2)
    assert [each.activity for each in dialogue.status().workers][1] == "few_micro_batches"
    dialogue.give(ev.WorkerLost(1, "gone"))
    assert jobs_of(dialogue) == "a", "the other takes over at once"


def finds_faulty(dialogue: Dialogue, worker: str) -> None:
    """Have job a find a worker faulty."""
    dialogue.core.runs["a"].found_faulty.append(worker)
    dialogue.later(1.25, *dialogue.core.members)


def test_what_one_job_finds_of_a_workers_hardware_holds_in_all_jobs() -> None:
    dialogue = two_jobs()
    dialogue.submit("c")
    dialogue.commits(1, 0, job="b")
    finds_faulty(dialogue, "w2")
    assert jobs_of(dialogue) == "ab" and dialogue.core.members[2].refusal is not None
    (exclusion,) = dialogue.job("b").excluded
    assert (exclusion.worker, exclusion.generation, exclusion.trusted_step) == ("w2", 1, 0)
    assert "found faulty by job a" in exclusion.reason
    assert [each.worker for each in dialogue.job("c").excluded] == ["w2"]
    assert dialogue.job("c").excluded[0].generation == 0, "nothing of it is void"


def test_what_a_worker_gave_before_a_check_that_it_passed_stays() -> None:
    dialogue = two_jobs()
    dialogue.commits(1, 0, job="b")
    dialogue.core.jobs.note_checked(["w2"], "a")
    dialogue.core.runs["b"].lease_book.clear_step()
    finds_faulty(dialogue, "w2")
    assert dialogue.job("b").excluded[0].generation == 0


GB = 1 << 30


def test_a_job_starts_once_the_optimizer_has_memory_for_it_and_says_so_meanwhile() -> None:
    dialogue = Dialogue()
    dialogue.give(ev.MemoryTold("optimizer", "opt", ToldMemory("h1", 100 * GB, 90 * GB)))
    needs = {"optimizer": RoleNeed(40 * GB, 10 * GB)}
    for job in "abc":
        dialogue.submit(job, needs=needs, max_workers=1)
    for session in range(1, 4):
        dialogue.hello(session)
    assert list(dialogue.core.runs) == ["a", "b"], "a snapshot is taken of one at a time"
    dialogue.later(1.25, 1, 2, 3)
    reason = dialogue.core.assignments.waits["c"].reason
    assert reason.startswith("waits for memory: optimizer opt needs 42.9 GB"), reason
    dialogue.cancel("a")
    dialogue.later(1.25, 1, 2, 3)
    assert list(dialogue.core.runs) == ["b", "c"]


def test_a_worker_beside_the_optimizer_serves_no_job_that_its_host_has_no_memory_for() -> None:
    dialogue = Dialogue()
    dialogue.give(ev.MemoryTold("optimizer", "opt", ToldMemory("h1", 100 * GB, 100 * GB)))
    dialogue.submit(needs={"optimizer": RoleNeed(60 * GB), "worker": RoleNeed(50 * GB)})
    for session, host in ((1, "h1"), (2, "h2")):
        dialogue.hello(session, host=host, memory_bytes=100 * GB, memory_free_bytes=100 * GB)
    dialogue.later(1.25, 1, 2)
    assert jobs_of(dialogue) == "-a"


def test_places_in_the_queue_begin_with_1_whichever_job_starts_without_workers() -> None:
    dialogue = Dialogue()
    for job in "abc":
        dialogue.submit(job)
    assert list(dialogue.core.runs) == ["a"]
    assert [each.position for each in dialogue.core.assignments.waits.values()] == [1, 2]


def test_places_in_the_queue_are_those_after_jobs_that_are_about_to_stop() -> None:
    dialogue = two_jobs()
    dialogue.submit("c", priority=1, min_workers=2)
    dialogue.submit("d")
    assert list(dialogue.core.runs) == ["a", "b", "c"], "a and b work on a step"
    assert {job: each.position for job, each in dialogue.core.assignments.waits.items()} == {"d": 1}
    waits = dict(zip(dialogue.status().running_jobs, dialogue.status().job_waits, strict=True))
    assert waits["a"] == waits["b"] == "stops after its step: its workers serve jobs that come first"


def test_a_job_that_stops_does_not_say_that_it_waits_for_workers() -> None:
    dialogue = two_jobs(workers=4, min_workers=2)
    before = len(dialogue.notes)
    dialogue.pause("b")
    dialogue.goes_by(STANDARD_TIMEOUTS.stall + 5, 1, 2, 3, 4)
    assert dialogue.saved["b"].job.state == PAUSED
    assert not [note for note in dialogue.notes[before:] if note.startswith("the job waits")]


def test_ten_thousand_queued_jobs_cost_a_decision_little_and_each_knows_its_place() -> None:
    dialogue = two_jobs()
    plan = JobPlan(steps=1, micro_batches=1)
    for number in range(10_000):
        dialogue.core.jobs.records[f"q{number}"] = Record(Job(id=f"q{number}", state=QUEUED), "{}", plan)
    dialogue.core.assignments.note_change()
    dialogue.later(1.25, 1, 2)
    waits = dialogue.core.assignments.waits
    assert len(waits) == 10_000 and waits["q9999"].position == 10_000
    assert waits["q9999"].reason == "100 jobs come before it"
    assert jobs_of(dialogue) == "ab"


def test_an_idle_worker_whose_mesh_could_not_be_opened_is_asked_again() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", min_workers=2, max_workers=2)
    for session in (1, 2):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    dialogue.ready(1, job="a")
    dialogue.says(2, pb.Failure(job="a", reason="the mesh can't be opened", retries=True))
    dialogue.submit("b", max_workers=1)
    assert jobs_of(dialogue) == "ab"
    dialogue.cancel("b")
    assert jobs_of(dialogue) == "aa"


def test_a_worker_whose_mesh_could_not_be_opened_is_asked_again_ever_more_rarely() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", min_workers=2, max_workers=2)
    for session in (1, 2):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    dialogue.ready(1, job="a")
    for _ in range(9):  # its own attempts, while no other job can use it
        dialogue.says(2, pb.Failure(job="a", reason="the mesh can't be opened", retries=True))
        dialogue.later(1.25, 1, 2)
        dialogue.says(2, pb.Fetching(job="a", input="training_config.data_path", size=1))
        dialogue.later(1.25, 1, 2)
    dialogue.submit("b", max_workers=1)
    assert jobs_of(dialogue) == "ab"
    dialogue.ready(2, job="b")
    failed_seconds = [dialogue.now]
    while dialogue.now < 7200.0:
        if jobs_of(dialogue) == "aa":
            failed_seconds.append(dialogue.now)
            dialogue.says(2, pb.Failure(job="a", reason="the mesh can't be opened", retries=True))
            assert jobs_of(dialogue) == "ab", "it serves another job meanwhile"
            dialogue.ready(2, job="b")
        dialogue.later(1.25, 1, 2)
    pauses = [round(after - before, -1) for before, after in pairwise(failed_seconds)]
    assert pauses == [120, 240, 480, 960, 1800, 1800]


def test_an_idle_worker_takes_the_place_of_one_that_is_found_faulty() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", min_workers=2, max_workers=2)
    for session in (1, 2, 3):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    assert jobs_of(dialogue) == "aa-"
    for session in (1, 2):
        dialogue.ready(session, job="a")
    run = dialogue.core.runs["a"]
    run.exclude_liars(["w2"], "of its checks", dialogue.now)
    dialogue.later(1.25, 1, 2, 3)
    assert dialogue.core.members[3].job == "a"


def test_an_excluded_worker_does_not_keep_a_job_from_stopping() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", max_workers=1)
    for session in (1, 2):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    dialogue.ready(1, job="a")
    dialogue.core.runs["a"].exclude_liars(["w1"], "of its checks", dialogue.now)
    dialogue.later(1.25, 1, 2)
    assert jobs_of(dialogue) == "aa", "it says why the first one takes no part"
    dialogue.pause("a")
    assert dialogue.job("a").state == PAUSED and jobs_of(dialogue) == "--"


def test_a_job_that_is_resumed_while_it_stops_leaves_no_more_jobs_running_than_allowed() -> None:
    dialogue = Dialogue(max_running_jobs=1)
    dialogue.optimizer()
    dialogue.submit("a")
    dialogue.joins(1)
    dialogue.stands(1, 0)
    dialogue.weights_loaded(1, 1, 0)
    dialogue.submit("b")
    dialogue.pause("a")
    assert list(dialogue.core.runs) == ["a", "b"], "b starts while a computes its last step"
    dialogue.resume("a")
    assert list(dialogue.core.runs) == ["a"] and dialogue.job("b").state == QUEUED


def test_reports_from_before_a_worker_left_say_nothing_when_it_is_back() -> None:
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", max_workers=1)
    dialogue.hello(1)
    dialogue.give(ev.DataStreamOpened(1))
    first = dialogue.orders[1]
    dialogue.pause("a")
    dialogue.resume("a")
    dialogue.stands(2, 0)
    assert jobs_of(dialogue) == "a" and dialogue.orders[1] > first
    assert dialogue.ready(1, build=first) == []
    assert dialogue.weights_loaded(1, 2, 0) == []
    assert dialogue.status().workers[0].state == "building"
    assert dialogue.ready(1) != []


def test_a_worker_that_is_to_leave_gets_the_weights_of_a_lease_that_was_just_granted() -> None:
    dialogue = two_jobs(workers=2)
    dialogue.core.assignments._bucket.take(
        50, dialogue.now
    )  # the decision comes with the next version's lease
    dialogue.submit("c", priority=5, min_workers=2, max_workers=2)
    assert all(each.leaving_since_seconds is None for each in dialogue.core.members.values())
    dialogue.computed(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0,) * 4)
    dialogue.now += 60
    lines = dialogue.weights(1, 1, 0)
    member = dialogue.core.members[1]
    assert "1 <- train 0-3 of 1.1" in " ".join(lines) and member.leaving_since_seconds is not None
    assert member.sent_version == (1, 1)
