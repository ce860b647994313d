"""Mistakes in the scheduler. Seeds of the simulation must detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.core.scheduling import scheduler
from aggregator.core.scheduling.scheduler import _Scheduler
from aggregator.core.scheduling.views import JobView, Settings, WorkerView


def _read_otherwise(
    patch: pytest.MonkeyPatch,
    job: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
) -> None:
    """Let the scheduler read other values of these fields."""
    decide = scheduler.decide

    def decided(jobs: list[JobView], workers: list[WorkerView], settings: Settings) -> Any:
        return decide(
            [replace(each, **(job or {})) for each in jobs],
            [replace(each, **(worker or {})) for each in workers],
            settings,
        )

    patch.setattr(scheduler, "decide", decided)


def forgets_priorities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "rank", property(lambda self: (0, self.order)))


def puts_the_youngest_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "rank", property(lambda self: (-self.priority, -self.order)))


def starts_with_fewer_than_min_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "least", property(lambda self: self.row_workers))


def divides_rows(patch: pytest.MonkeyPatch) -> None:
    _read_otherwise(patch, job={"row_workers": 1})


def gives_more_than_max_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "most", property(lambda self: self.least + self.max_workers * self.row_workers))


def stops_jobs_that_may_not_be_stopped(patch: pytest.MonkeyPatch) -> None:
    _read_otherwise(patch, job={"preemptible": True})


def keeps_workers_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Scheduler, "_is_overdue", lambda self, job: False)


def returns_workers_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Scheduler, "_is_overdue", lambda self, job: len(self._own[job.id]) < job.least)


def reserves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Scheduler, "_reserve", lambda self, job: None)


def reserves_for_jobs_that_do_not_fit(patch: pytest.MonkeyPatch) -> None:
    wait = _Scheduler._wait

    def waits(self: _Scheduler, job: JobView, reason: str, start_seconds: float | None = None) -> None:
        wait(self, job, reason, start_seconds)
        self._due.update(each.id for each in self._pool.values() if job.id not in each.unfit)

    patch.setattr(_Scheduler, "_wait", waits)


def stops_jobs_for_more_workers(patch: pytest.MonkeyPatch) -> None:
    give_more = _Scheduler._give_more

    def gave(self: _Scheduler, job: JobView) -> None:
        self._cores.clear()
        give_more(self, job)

    patch.setattr(_Scheduler, "_give_more", gave)


def moves_workers_at_any_cost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler, "_pays", lambda worker, seconds: True)


def moves_workers_that_verify(patch: pytest.MonkeyPatch) -> None:
    _read_otherwise(patch, worker={"held": False})


def gives_work_to_excluded_workers(patch: pytest.MonkeyPatch) -> None:
    _read_otherwise(patch, worker={"excluded": False})


def forgets_refusals(patch: pytest.MonkeyPatch) -> None:
    _read_otherwise(patch, worker={"unfit": {}})


def forgets_who_serves_whom(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Scheduler, "_still_own", lambda self, job: [])


def runs_any_number_of_jobs(patch: pytest.MonkeyPatch) -> None:
    decide = scheduler.decide
    patch.setattr(
        scheduler,
        "decide",
        lambda jobs, workers, settings: decide(jobs, workers, replace(settings, max_running_jobs=1000)),
    )


MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    forgets_priorities,
    puts_the_youngest_first,
    starts_with_fewer_than_min_workers,
    divides_rows,
    gives_more_than_max_workers,
    stops_jobs_that_may_not_be_stopped,
    keeps_workers_for_ever,
    returns_workers_at_once,
    reserves_nothing,
    reserves_for_jobs_that_do_not_fit,
    stops_jobs_for_more_workers,
    moves_workers_at_any_cost,
    moves_workers_that_verify,
    gives_work_to_excluded_workers,
    forgets_refusals,
    forgets_who_serves_whom,
    runs_any_number_of_jobs,
]
