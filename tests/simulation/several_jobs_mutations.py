"""Mutations of what keeps several jobs apart, and shares the workers out. Contended seeds must detect each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.core import aggregator
from aggregator.core.aggregator import AggregatorCore
from aggregator.core.assignments import Assignments
from aggregator.core.job_report import resume_job
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.members import Member
from aggregator.core.rows.job_rows import JobRows
from aggregator.core.rows.pipeline_rows import PipelineRows
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduler_input import SchedulerInput
from aggregator.core.scheduling.scheduler import _Scheduler
from aggregator.core.scheduling.views import JobView, Settings, State
from optimizer.core.job_core import JobCore
from plane.bookkeeping import PlaneCore
from services.protocol.versions import Version


def takes_reports_of_other_jobs(patch: pytest.MonkeyPatch) -> None:
    from_worker = AggregatorCore._from_worker

    def taken(self: AggregatorCore, event: Any, now: float) -> None:
        member = self.members.get(event.session)
        if member is not None and member.job and hasattr(event.body, "job"):
            event.body.job = member.job
        from_worker(self, event, now)

    patch.setattr(AggregatorCore, "_from_worker", taken)
    for rows in (JobRows, PipelineRows):
        patch.setattr(rows, "expects", lambda self, member, ready: True)


def leaves_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningJob, "lets_go", lambda self, member, now: True)


def drops_the_tensors_of_all_jobs(patch: pytest.MonkeyPatch) -> None:
    drop_job = PlaneCore.drop_job

    def dropped(self: PlaneCore, job: str) -> None:
        for each in [job, *self.jobs]:
            drop_job(self, each)

    patch.setattr(PlaneCore, "drop_job", dropped)


def sends_weights_of_another_job(patch: pytest.MonkeyPatch) -> None:
    send_version = PlaneCore.send_version

    def sent(self: PlaneCore, session: int, job: str, version: Version, parts: Any = None) -> None:
        send_version(self, session, next(iter(self.jobs), job), version, parts)

    patch.setattr(PlaneCore, "send_version", sent)


def forgets_pauses_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LiveJobs, "_finish_pause", lambda self, record: resume_job(record.job))


def gives_workers_to_jobs_that_stop(patch: pytest.MonkeyPatch) -> None:
    state_of = SchedulerInput._state_of

    def running(self: SchedulerInput, job: str, starts: Any) -> State:
        return State.RUNNING if job in self._runs else state_of(self, job, starts)

    patch.setattr(SchedulerInput, "_state_of", running)


def counts_a_worker_in_two_jobs(patch: pytest.MonkeyPatch) -> None:
    give_back = RunningJob.give_back

    def kept(self: RunningJob, members: list[Member], reason: str, now: float) -> None:
        give_back(self, members, reason, now)
        self.members.update((each.session, each) for each in members)

    patch.setattr(RunningJob, "give_back", kept)


def forgets_exclusions_in_other_jobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aggregator, "exclude_from_all", lambda *_: None)


def stops_jobs_without_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    close = LiveJobs.close
    patch.setattr(LiveJobs, "close", lambda self, job, **_: close(self, job, checkpoint=False))
    patch.setattr(JobCore, "_save_checkpoint", lambda self: None)


def forgets_changed_priorities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LiveJobs, "set_priority", lambda self, job, priority: None)


def ignores_priorities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "rank", property(lambda self: (0, self.order)))


def gives_half_sets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobView, "least", property(lambda self: 1))


def never_gives_reserved_workers(patch: pytest.MonkeyPatch) -> None:
    reserve, find = _Scheduler._reserve, _Scheduler._find
    reserved: dict[Settings, set[str]] = {}  # a cluster has settings of its own

    def kept(self: _Scheduler, job: JobView) -> None:
        reserve(self, job)
        reserved.setdefault(self._settings, set()).update(self._reserved)

    def found(self: _Scheduler, job: JobView, count: int, barred: Iterable[str] = (), **words: bool) -> Any:
        return find(self, job, count, {*barred, *reserved.get(self._settings, ())}, **words)

    patch.setattr(_Scheduler, "_reserve", kept)
    patch.setattr(_Scheduler, "_find", found)


def stops_jobs_that_may_not_be_stopped(patch: pytest.MonkeyPatch) -> None:
    views = SchedulerInput.view_jobs

    def preemptible(self: SchedulerInput, *arguments: Any) -> list[JobView]:
        found = views(self, *arguments)
        for each in found:
            object.__setattr__(each, "preemptible", True)
        return found

    patch.setattr(SchedulerInput, "view_jobs", preemptible)


def runs_any_number_of_jobs(patch: pytest.MonkeyPatch) -> None:
    made = Assignments.__init__

    def unlimited(self: Assignments, *arguments: Any) -> None:
        *others, settings = arguments
        made(self, *others, settings=replace(settings, max_running_jobs=100))

    patch.setattr(Assignments, "__init__", unlimited)


SEVERAL_JOBS_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    takes_reports_of_other_jobs,
    leaves_before_its_commit,
    drops_the_tensors_of_all_jobs,
    sends_weights_of_another_job,
    forgets_pauses_at_a_restart,
    gives_workers_to_jobs_that_stop,
    counts_a_worker_in_two_jobs,
    forgets_exclusions_in_other_jobs,
    stops_jobs_without_a_checkpoint,
    forgets_changed_priorities,
    ignores_priorities,
    gives_half_sets,
    never_gives_reserved_workers,
    stops_jobs_that_may_not_be_stopped,
    runs_any_number_of_jobs,
]
