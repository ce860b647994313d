"""Which worker serves which job, in clusters small enough to follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aggregator.core.scheduling.scheduler import decide
from aggregator.core.scheduling.views import Decision, JobView, Settings, State, WorkerView

SETTINGS = Settings(max_running_jobs=8, comeback_seconds=120.0)


class Cluster:
    """Jobs, named by the order of their submission, and workers w0, w1 and so on, which move at once."""

    def __init__(self, workers: int, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.jobs: dict[str, JobView] = {}
        self.workers = {
            f"w{number}": WorkerView(f"w{number}", move_seconds=20.0) for number in range(workers)
        }

    def submit(self, name: str, least: int = 1, most: int = 8, **fields: Any) -> None:
        self.jobs[name] = JobView(
            name, len(self.jobs), min_workers=least, max_workers=max(least, most), **fields
        )

    def change_job(self, name: str, **fields: Any) -> None:
        self.jobs[name] = replace(self.jobs[name], **fields)

    def change_worker(self, name: str, **fields: Any) -> None:
        self.workers[name] = replace(self.workers[name], **fields)

    def lose(self, job: str, count: int = 1) -> None:
        for name in [each.id for each in self.workers.values() if each.job == job][:count]:
            del self.workers[name]

    def decide(self) -> Decision:
        decision = decide(self.jobs.values(), self.workers.values(), self.settings)
        for name, job in decision.assignment.items():
            self.change_worker(name, job=job)
        for name in decision.starts:
            self.change_job(name, state=State.RUNNING)
        for name in decision.requeued:
            self.change_job(name, state=State.QUEUED)
        return decision

    def sizes(self) -> dict[str, int]:
        """Decide, and return how many workers each job has."""
        self.decide()
        return {job: sum(each.job == job for each in self.workers.values()) for job in self.jobs}


def test_older_jobs_get_what_is_left_after_each_has_its_least() -> None:
    cluster = Cluster(6)
    cluster.submit("a", 1, 4)
    cluster.submit("b", 2, 4)
    assert cluster.sizes() == {"a": 4, "b": 2}
    cluster.submit("c", 1, 1)
    assert cluster.sizes() == {"a": 3, "b": 2, "c": 1}


def test_two_jobs_never_hold_half_of_what_each_needs() -> None:
    cluster = Cluster(4)
    cluster.submit("a", 3, 3)
    cluster.submit("b", 3, 3)
    assert cluster.sizes() == {"a": 3, "b": 0}


def test_a_higher_priority_takes_the_rest_of_others_first_and_then_the_last_job() -> None:
    cluster = Cluster(5)
    cluster.submit("a", 2, 3)
    cluster.submit("b", 2, 2)
    assert cluster.sizes() == {"a": 3, "b": 2}
    cluster.submit("c", 1, 1, priority=1)
    assert cluster.sizes() == {"a": 2, "b": 2, "c": 1}
    cluster.submit("d", 1, 1, priority=1)
    decision = cluster.decide()
    assert decision.requeued == ("b",)
    assert cluster.sizes() == {"a": 3, "b": 0, "c": 1, "d": 1}


def test_more_than_min_workers_stops_no_job() -> None:
    cluster = Cluster(4)
    cluster.submit("a", 2, 2)
    cluster.decide()
    cluster.submit("b", 1, 4, priority=1)
    assert cluster.sizes() == {"a": 2, "b": 2}


def test_a_job_that_may_not_be_stopped_keeps_its_least() -> None:
    cluster = Cluster(4)
    cluster.submit("a", 2, 4, preemptible=False)
    assert cluster.sizes() == {"a": 4}
    cluster.submit("b", 3, 3, priority=2)
    assert cluster.sizes() == {"a": 4, "b": 0}
    cluster.change_job("b", min_workers=2, max_workers=2)
    assert cluster.sizes() == {"a": 2, "b": 2}


def test_a_later_job_runs_until_the_first_in_the_queue_can_start() -> None:
    cluster = Cluster(5)
    cluster.submit("a", 3, 3)
    cluster.decide()
    cluster.submit("b", 4, 4)
    cluster.submit("c", 1, 2)
    assert cluster.sizes() == {"a": 3, "b": 0, "c": 2}
    del cluster.jobs["a"]
    decision = cluster.decide()
    assert (decision.starts, decision.requeued) == (("b",), ())
    assert cluster.sizes() == {"b": 4, "c": 1}


def test_a_later_job_that_could_not_be_stopped_delays_no_earlier_one() -> None:
    cluster = Cluster(5)
    cluster.submit("a", 3, 3)
    cluster.decide()
    cluster.submit("b", 4, 4)
    cluster.submit("c", 1, 2, preemptible=False)
    assert cluster.sizes() == {"a": 3, "b": 0, "c": 0}
    for name in ("w3", "w4"):
        cluster.change_worker(name, unfit={"b": "its mesh is [1, 4]"})
    assert cluster.sizes() == {"a": 3, "b": 0, "c": 2}, "b fits 3 workers, so nothing waits for it"


def test_no_job_starts_shortly_before_an_earlier_one_needs_its_workers() -> None:
    cluster = Cluster(4)
    cluster.submit("a", 2, 2, remaining_seconds=39.0)
    cluster.decide()
    cluster.submit("b", 3, 3)
    cluster.submit("c", 1, 1)
    assert cluster.sizes() == {"a": 2, "b": 0, "c": 0}
    cluster.change_job("a", remaining_seconds=40.0)
    assert cluster.sizes() == {"a": 2, "b": 0, "c": 1}


def test_a_short_job_waits_for_the_comeback_of_its_workers_and_then_returns_the_others() -> None:
    cluster = Cluster(6)
    cluster.submit("a", 4, 4)
    cluster.submit("b", 2, 2)
    cluster.decide()
    cluster.lose("a")
    for seconds in (0.0, 119.0):
        cluster.change_job("a", short_seconds=seconds)
        assert cluster.sizes() == {"a": 3, "b": 2}
    # It comes first by age, so it now stops the other one.
    cluster.change_job("a", short_seconds=120.0)
    assert cluster.sizes() == {"a": 4, "b": 0}
    cluster.lose("a", 2)
    cluster.change_job("a", short_seconds=120.0)
    decision = cluster.decide()
    assert (decision.starts, decision.requeued) == (("b",), ("a",))


def test_a_short_job_is_completed_from_what_others_have_beyond_their_least() -> None:
    cluster = Cluster(5)
    cluster.submit("a", 1, 3)
    cluster.submit("b", 2, 2)
    assert cluster.sizes() == {"a": 3, "b": 2}
    cluster.lose("b")
    assert cluster.sizes() == {"a": 2, "b": 2}


def test_pipelines_get_whole_rows_and_keep_spares_that_nobody_needs() -> None:
    cluster = Cluster(7)
    cluster.submit("a", 1, 9, row_workers=3)
    assert cluster.sizes() == {"a": 6}
    cluster.lose("a")
    cluster.change_job("a", max_workers=6)
    cluster.change_worker("w6", unfit={"a": "its mesh is [1, 4]"})
    assert cluster.sizes() == {"a": 5}
    cluster.submit("b", 2, 8)
    assert cluster.sizes() == {"a": 4, "b": 2}, "the spare of the row that misses a worker may come back"
    cluster.change_job("a", short_seconds=120.0)
    assert cluster.sizes() == {"a": 3, "b": 3}


@pytest.mark.parametrize(("left_seconds", "size"), [(39.0, 1), (40.0, 2), (None, 2)])
def test_a_worker_joins_a_job_that_lasts_twice_as_long_as_the_move(
    left_seconds: float | None, size: int
) -> None:
    cluster = Cluster(1)
    cluster.submit("a", remaining_seconds=left_seconds)
    cluster.decide()
    cluster.workers["w1"] = WorkerView("w1", move_seconds=20.0)
    assert cluster.sizes() == {"a": size}


def test_a_move_pays_within_the_payback_time_or_never() -> None:
    cluster = Cluster(1, replace(SETTINGS, payback_seconds=30.0))
    cluster.submit("a")
    cluster.decide()
    cluster.workers["w1"] = WorkerView("w1", move_seconds=20.0)
    assert cluster.sizes() == {"a": 1}


def test_what_the_first_in_the_queue_can_not_use_is_taken_first() -> None:
    cluster = Cluster(4)
    cluster.change_worker("w3", unfit={"b": "its mesh is [1, 4]"})
    cluster.submit("a", 2, 2)
    cluster.submit("b", 2, 2)
    assert cluster.sizes() == {"a": 2, "b": 2}
    assert cluster.workers["w3"].job == "a"


def test_a_job_that_fits_too_few_workers_waits_with_the_reason_and_delays_nobody() -> None:
    cluster = Cluster(3)
    cluster.change_worker("w0", unfit={"a": "its mesh is [1, 4]"})
    cluster.submit("a", 3)
    cluster.submit("b", 3, 3, preemptible=False)
    wait = cluster.decide().waits["a"]
    assert wait.reason == ("it needs 3 workers, and 2 of the 3 connected fit it; not w0 (its mesh is [1, 4])")
    assert cluster.sizes() == {"a": 0, "b": 3}


def test_what_else_blocks_a_job_is_its_reason_and_stops_no_running_one() -> None:
    cluster = Cluster(2)
    cluster.submit("a", blocked="waits for memory: 9 GB of 4 GB on h1")
    cluster.submit("b", 2, blocked="")
    assert cluster.decide().waits["a"].reason == "waits for memory: 9 GB of 4 GB on h1"
    cluster.change_job("b", blocked="waits for memory")
    assert cluster.sizes() == {"a": 0, "b": 2}


def test_jobs_beyond_the_largest_number_wait_by_rank() -> None:
    cluster = Cluster(4, replace(SETTINGS, max_running_jobs=2))
    for name, priority in (("a", 0), ("b", 0), ("c", 0), ("d", 1)):
        cluster.submit(name, 1, 1, priority=priority)
    decision = cluster.decide()
    assert decision.starts == ("d", "a")
    assert {name: (each.position, each.reason) for name, each in decision.waits.items()} == {
        "b": (1, "at most 2 jobs may run at a time (max_running_jobs)"),
        "c": (2, "at most 2 jobs may run at a time (max_running_jobs)"),
    }


def test_estimated_starts_follow_from_times_left() -> None:
    cluster = Cluster(3)
    cluster.submit("a", 1, 1, remaining_seconds=100.0)
    cluster.submit("b", 2, 2, remaining_seconds=300.0)
    cluster.decide()
    cluster.submit("c", 3, 3, remaining_seconds=50.0)
    cluster.submit("d", 1, 1)
    cluster.submit("e", 3, 3)
    waits = cluster.decide().waits
    assert [each.start_seconds for each in waits.values()] == [300.0, 350.0, None]


def test_a_paused_job_has_no_workers_and_gets_them_back_even_while_they_leave() -> None:
    cluster = Cluster(2)
    cluster.submit("a", 2, 2)
    cluster.decide()
    cluster.change_job("a", state=State.QUEUED)  # paused and resumed before a worker has left
    assert cluster.sizes() == {"a": 2}
    cluster.change_job("a", state=State.PAUSED)
    decision = cluster.decide()
    assert (set(decision.assignment.values()), decision.waits) == ({""}, {})


def test_excluded_and_held_workers_stay_where_they_are() -> None:
    cluster = Cluster(3)
    cluster.submit("a", 1, 2)
    cluster.decide()
    cluster.change_worker("w0", excluded=True)
    cluster.change_worker("w1", held=True)
    cluster.submit("b", 2, 2, priority=1)
    assert cluster.sizes() == {"a": 3, "b": 0}
    cluster.change_worker("w1", held=False)
    assert cluster.sizes() == {"a": 0, "b": 2}


def test_a_refusal_sends_a_worker_elsewhere() -> None:
    cluster = Cluster(2)
    cluster.submit("a", 1, 2)
    cluster.submit("b", 1, 1, priority=-1)
    assert cluster.sizes() == {"a": 2, "b": 0}
    cluster.change_worker("w0", unfit={"a": "out of memory"})
    assert cluster.sizes() == {"a": 1, "b": 1}
