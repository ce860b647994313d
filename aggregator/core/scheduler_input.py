"""What the scheduler is shown of jobs and workers: who fits what, as far as is known, and where memory is left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from aggregator.core.job_report import Record
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.members import Member
from aggregator.core.pace import estimate_seconds_left
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduling.host_memories import HostMemories, ToldMemory
from aggregator.core.scheduling.room import JobNeeds
from aggregator.core.scheduling.views import JobView, State, WorkerView
from protos.cluster_pb2 import Hello
from protos.jobs_pb2 import Job
from services.protocol.features import find_lack
from services.protocol.plan import JobPlan

UNMEASURED_MOVE_SECONDS = 30.0
"""Assumed time of a worker's move to another job, until one was measured."""
MOST_KNOWN = 1024
"""Number of workers whose last job is remembered, those that were lost last."""


class Misfit(NamedTuple):
    """Why a worker does not fit a job, as the job has found.

    Attributes:
        reason: the reason.
        until_seconds: until when that is believed. It is remembered for longer.
        may_pass: whether it may fit later, in the same process: it could not open its mesh, or lacks an input.
        seconds: how long it is believed after it was found; twice as long if it is found again after that.
    """

    reason: str
    until_seconds: float
    may_pass: bool
    seconds: float


class SchedulerInput:
    """What is known of jobs and workers, as the scheduler reads it.

    Args:
        members: the connected workers, by session.
        runs: the running jobs, by id.
        jobs: the jobs that have not ended.
        doubt_seconds: how long a worker that could not open its mesh is believed not to fit a job, the first time.
        unfit_seconds: how long it is at most, and one that a job has refused.
        max_workers_per_person: maximum number of workers of one person's jobs; None for no maximum.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        runs: Mapping[str, RunningJob],
        jobs: LiveJobs,
        doubt_seconds: float,
        unfit_seconds: float,
        max_workers_per_person: int | None,
    ) -> None:
        self._members = members
        self._runs = runs
        self._jobs = jobs
        self._doubt_seconds = doubt_seconds
        self._unfit_seconds = unfit_seconds
        self._max_workers_per_person = max_workers_per_person
        self._last_jobs: dict[str, str] = {}  # by worker's name: the job that it served when it was lost
        self._short_since: dict[str, float] = {}  # by job
        self._misfits: dict[str, dict[str, Misfit]] = defaultdict(dict)  # by job and incarnation of a worker
        self._needed: dict[
            str, int
        ] = {}  # by job: workers without which no row of it is complete, if that was learned
        self._noted_seconds = 0.0
        self._memories = HostMemories()

    # ---- what happens ----

    def note_memory(self, role: str, name: str, told: ToldMemory) -> None:
        """Take what a process has told of its host's memory."""
        suspended = [
            JobNeeds(job, self._jobs.records[job].needs, frozenset()) for job in self._jobs.suspended
        ]
        self._memories.note(role, name, told, [*self._needs_of_runs(with_workers=True), *suspended])

    def note_open(self, job: str) -> None:
        """Take account of a job that does not run, and that an optimizer which was connected has open."""
        needs = JobNeeds(job, self._jobs.records[job].needs, frozenset())
        self._memories.note_open(needs, self._needs_of_runs(with_workers=True))

    def worker_connected(self, member: Member, hello: Hello) -> None:
        """Take account of a worker that has connected: of the job that it has built, and of its host's memory."""
        told = ToldMemory(hello.host, hello.memory_bytes, hello.memory_free_bytes)
        self.note_memory("worker", member.name, told)
        for known in self._misfits.values():
            known.pop(member.incarnation, None)
        if hello.job:
            self._last_jobs[member.name] = hello.job

    def worker_lost(self, member: Member) -> None:
        """Take account of a worker that is gone; it gets its job again if it comes back soon."""
        self._memories.forget("worker", member.name)
        self._last_jobs.pop(member.name, None)
        if member.job:
            self._last_jobs[member.name] = member.job
        while len(self._last_jobs) > MOST_KNOWN:
            del self._last_jobs[next(iter(self._last_jobs))]

    def note_misfits(self, now: float) -> None:
        """Remember which workers their jobs have refused, or that lack something for them."""
        self._needed.update((job, run.rows.needed_workers) for job, run in self._runs.items())
        known_jobs: tuple[dict[str, Any], ...] = (self._misfits, self._needed)
        for known_by_job in known_jobs:
            for job in known_by_job.keys() - self._jobs.records.keys():
                del known_by_job[job]
        for member in self._members.values():
            reason = member.refusal or member.unfit
            if reason is not None and member.job:
                known = self._misfits[member.job]
                may_pass = member.refusal is None
                seconds = self._seconds_of_doubt(known.pop(member.incarnation, None), may_pass, now)
                known[member.incarnation] = Misfit(str(reason), now + seconds, may_pass, seconds)
                while len(known) > MOST_KNOWN:
                    del known[next(iter(known))]
            else:
                known = self._misfits.get(member.job, {})
                misfit = known.get(member.incarnation)
                if misfit is not None and (member.able or not misfit.may_pass):
                    del known[member.incarnation]
        for known in self._misfits.values():
            for incarnation, misfit in list(known.items()):
                if misfit.until_seconds + self._unfit_seconds < now:
                    del known[incarnation]
        self._noted_seconds = now

    def _seconds_of_doubt(self, before: Misfit | None, may_pass: bool, now: float) -> float:
        """Return how long it is believed that a worker does not fit, given what was found of it before."""
        if not may_pass:
            return self._unfit_seconds
        if before is None or not before.may_pass:
            return self._doubt_seconds
        return before.seconds if now < before.until_seconds else min(2 * before.seconds, self._unfit_seconds)

    # ---- memory ----

    def _needs_of_runs(self, *, with_workers: bool) -> list[JobNeeds]:
        """Return the memory that the running jobs need, with or without that of the workers that serve them."""
        return [
            JobNeeds(
                job,
                self._jobs.records[job].needs,
                frozenset(each.name for each in run.members.values() if with_workers),
            )
            for job, run in self._runs.items()
            if job in self._jobs.records
        ]

    def find_short_of_memory(self, waiting: Collection[tuple[Record, JobPlan]]) -> dict[str, str]:
        """Return for which memory of roles that are no workers the jobs wait, by job."""
        needs = {record.job.id: record.needs for record, _ in waiting if record.needs}
        return self._memories.find_shortages(needs, self._needs_of_runs(with_workers=True)) if needs else {}

    def find_with_room(
        self, suspended: Collection[str], starts: Collection[str], serving: Mapping[int, str]
    ) -> list[str]:
        """Return the jobs for which there is memory beside those that run or start, if they come first.

        Args:
            suspended: jobs that don't run and are open, in the order in which they stay so.
            starts: ids of the jobs that start.
            serving: the job that each worker serves or is on its way to, by session.
        """
        workers: dict[str, set[str]] = defaultdict(set)
        for session, job in serving.items():
            workers[job].add(self._members[session].name)
        running = [
            JobNeeds(job, self._jobs.records[job].needs, frozenset(workers[job]))
            for job in [*self._runs, *starts]
        ]
        needs = {job: self._jobs.records[job].needs for job in suspended}
        short = self._memories.find_shortages(needs, running)
        return [job for job in suspended if job not in short]

    # ---- jobs ----

    def view_jobs(
        self,
        waiting: Collection[tuple[Record, JobPlan]],
        starts: Collection[str],
        blocked: Mapping[str, str],
        now: float,
    ) -> list[JobView]:
        """Return what the scheduler is told of the jobs.

        Args:
            waiting: the jobs that wait for their start, with their plans.
            starts: ids of those that start in any case.
            blocked: what jobs lack besides workers, by job.
            now: the time, on the monotonic clock.
        """
        plans = {record.job.id: plan for record, plan in waiting}
        plans.update((job, run.plan) for job, run in self._runs.items())
        order = {job: place for place, job in enumerate(self._jobs.records)}
        ranked = sorted(plans, key=lambda job: (-self._jobs.records[job].job.priority, order[job]))
        left: dict[str, int] = {}  # by person: workers that their later jobs may have
        views = []
        for job in ranked:
            record, plan = self._jobs.records[job].job, plans[job]
            least, most = self.limits_of(job, plan)
            if self._max_workers_per_person is not None and record.owner:
                left.setdefault(record.owner, self._max_workers_per_person)
                most = min(most, left[record.owner])
                left[record.owner] -= most
            reason = blocked.get(job, "")
            if most < least:
                reason = f"{record.owner}'s jobs may have {self._max_workers_per_person} workers (workers_per_person)"
            views.append(
                JobView(
                    id=job,
                    order=order[job],
                    state=self._state_of(job, starts),
                    priority=record.priority,
                    min_workers=least,
                    max_workers=most,
                    row_workers=self._row_workers(plan),
                    preemptible=plan.preemptible,
                    remaining_seconds=_remaining_seconds(record, plan),
                    short_seconds=self._seconds_short(job, least, now),
                    blocked=reason,
                )
            )
        return views

    def limits_of(self, job: str, plan: JobPlan) -> tuple[int, int]:
        """Return the least and the largest number of workers of a job, whose stages may need more than it says."""
        least = max(plan.min_workers, self._needed.get(job, 1))
        return least, max(plan.max_workers, least)

    def _state_of(self, job: str, starts: Collection[str]) -> State:
        run = self._runs.get(job)
        if run is not None and run.stops is not None:
            return State.PAUSED
        return State.QUEUED if run is None and job not in starts else State.RUNNING

    @staticmethod
    def _row_workers(plan: JobPlan) -> int:
        """Return how many workers a further row of a job takes. Fewer than its stages share them, in one row."""
        return plan.stages if plan.min_workers >= plan.stages else 1

    def _seconds_short(self, job: str, least: int, now: float) -> float:
        run = self._runs.get(job)
        fitting = 0 if run is None else sum(each.fits for each in run.members.values())
        if run is None or fitting >= least:
            self._short_since.pop(job, None)
            return 0.0
        return now - self._short_since.setdefault(job, now)

    # ---- workers ----

    def view_workers(
        self,
        serving: Mapping[int, str],
        lent: Collection[int],
        jobs: Collection[str],
        starts: Collection[str],
    ) -> Iterator[WorkerView]:
        """Yield what the scheduler is told of workers.

        Args:
            serving: the job that each serves or is on its way to, by session; empty for none.
            lent: sessions of those that no job needs.
            jobs: ids of the jobs that the scheduler is told of.
            starts: ids of the jobs that start in any case.
        """
        for session, job in serving.items():
            member = self._members[session]
            if not job and self._last_jobs.get(member.name) in {*self._runs, *starts}:
                job = self._last_jobs[member.name]
            yield WorkerView(
                id=member.name,
                job="" if session in lent else job,
                unfit=self.find_misfits(member, jobs),
                settled=member.ready,
                # An idle worker costs nobody anything.
                move_seconds=(member.build_seconds or UNMEASURED_MOVE_SECONDS) if member.job else 0.0,
            )

    def has_others(self, job: str) -> bool:
        """Return whether there are workers that don't serve a job, and are not known not to fit it."""
        if self._is_external(job):
            return True  # another process may join at any time
        return any(each.job != job and not self.find_misfits(each, [job]) for each in self._members.values())

    def _is_external(self, job: str) -> bool:
        plan = self._jobs.records[job].plan
        return isinstance(plan, JobPlan) and plan.external

    def _find_stranger(self, member: Member, job: str) -> str:
        """Return why a worker is not for a job, whatever it says of it; empty if it may be."""
        if member.external_job not in ("", job):
            return f"its process has joined job {member.external_job}"
        if self._is_external(job) and not member.external_job:
            return "no process has joined it for the job"
        return ""

    def find_misfits(self, member: Member, jobs: Collection[str], *, lasting: bool = False) -> dict[str, str]:
        """Return which of some jobs a worker does not fit, as far as is known, with the reasons.

        Args:
            member: the worker.
            jobs: ids of the jobs.
            lasting: whether only reasons count that don't pass by themselves.
        """
        running = self._needs_of_runs(with_workers=False) if self._memories.shares_host(member.name) else None
        found = {}
        for job in jobs:
            record, misfit = self._jobs.records[job], self._find_believed(member, job)
            reason = "" if misfit is None or (lasting and misfit.may_pass) else misfit.reason
            reason = self.find_bar(member, job) or self._find_stranger(member, job) or reason
            if running is not None and job != member.job and not reason:
                reason = self._memories.find_small(member.name, record.needs, running)
            if reason:
                found[job] = reason
        return found

    def find_bar(self, member: Member, job: str) -> str:
        """Return why a worker can't serve a job for as long as its process lives; empty if it may."""
        record = self._jobs.records[job]
        for each in record.job.excluded:
            if each.worker == member.name:
                return each.reason
        needed = record.plan.features if isinstance(record.plan, JobPlan) else ()
        return str(find_lack(job, needed, member.features) or "")

    def _find_believed(self, member: Member, job: str) -> Misfit | None:
        """Return why a worker does not fit a job; None if that is not believed, or no longer."""
        known = self._misfits.get(job, {}).get(member.incarnation)
        is_over = known is None or known.until_seconds < self._noted_seconds
        is_asked_again = job == member.job and member.refusal is None and member.unfit is None
        return None if is_over or is_asked_again else known


def _remaining_seconds(job: Job, plan: JobPlan) -> float | None:
    """Return the time that a job presumably takes, with as many workers as it had last; None if it is unknown."""
    if job.HasField("seconds_left"):
        return float(job.seconds_left)
    if not job.step_seconds:
        return None
    return estimate_seconds_left(plan, job.step, job.step_seconds, job.evaluation_seconds)
