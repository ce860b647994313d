"""Which worker serves which job: the scheduler decides, and workers move once their leases have been committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from aggregator.core.job_report import Record
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.members import Member
from aggregator.core.pace import estimate_seconds_left
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduling.host_memories import HostMemories, ToldMemory
from aggregator.core.scheduling.room import JobNeeds
from aggregator.core.scheduling.scheduler import decide
from aggregator.core.scheduling.views import Decision, JobView, Settings, State, Wait, WorkerView
from aggregator.core.token_bucket import TokenBucket
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import QUEUED, RUNNING, Job
from services.protocol.envelope import WorkerBody
from services.protocol.plan import JobPlan
from services.timeouts import Timeouts

DECISIONS_AT_ONCE = 50
"""Number of decisions that may follow each other at once; beyond them, there is one a second."""
UNMEASURED_MOVE_SECONDS = 30.0
"""Assumed time of a worker's move to another job, until one was measured."""
MOST_CONSIDERED = 100
"""Number of waiting jobs that a decision considers, those that come first."""
MOST_KNOWN = 1024
"""Number of workers whose last job is remembered, those that were lost last."""


class Assignments:
    """The workers' jobs, and the moves between them that were decided and have yet to happen.

    Args:
        members: the connected workers, by session.
        runs: the running jobs, by id.
        jobs: the jobs that have not ended.
        timeouts: the cluster's timeouts.
        max_running_jobs: maximum number of jobs that run at once.
        max_workers_per_person: maximum number of workers of one person's jobs; None for no maximum.

    Attributes:
        waits: why jobs wait, by job, in the order in which they come.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        runs: Mapping[str, RunningJob],
        jobs: LiveJobs,
        timeouts: Timeouts,
        *,
        max_running_jobs: int,
        max_workers_per_person: int | None,
    ) -> None:
        self._members = members
        self._runs = runs
        self._jobs = jobs
        self._settings = Settings(max_running_jobs, timeouts.comeback)
        self._max_workers_per_person = max_workers_per_person
        self._unfit_seconds = timeouts.unfit
        self._bucket = TokenBucket(1.0, DECISIONS_AT_ONCE)
        self._due = True
        self._targets: dict[
            int, str
        ] = {}  # by session: the job of a worker that is on its way to it, or to none
        self._lent: set[int] = set()  # sessions of workers that no job needs, and that one has all the same
        self._checked: frozenset[int] = frozenset()  # sessions of workers that take part in a check of links
        self._last_jobs: dict[str, str] = {}  # by worker's name: the job that it served when it was lost
        self._short_since: dict[str, float] = {}  # by job
        # By job and incarnation of a worker: why it does not fit, and until when that is believed.
        self._misfits: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)
        self._needed: dict[
            str, int
        ] = {}  # by job: workers without which no row of it is complete, if that was learned
        self._memories = HostMemories()
        self.waits: dict[str, Wait] = {}

    # ---- what happens ----

    def note_change(self) -> None:
        """Have workers be shared out again: a job came, ended or changed."""
        self._due = True

    def note_tick(self) -> None:
        """Have workers be shared out again if time alone may change something: jobs wait, or lack workers."""
        self._due = self._due or bool(self.waits or self._short_since) or len(self._runs) > 1

    def note_memory(self, role: str, name: str, told: ToldMemory) -> None:
        """Take what a process has told of its host's memory."""
        self._due = True
        suspended = [
            JobNeeds(job, self._jobs.records[job].needs, frozenset()) for job in self._jobs.suspended
        ]
        self._memories.note(role, name, told, [*self._needs_of_runs(with_workers=True), *suspended])

    def note_open(self, job: str) -> None:
        """Take account of a job that does not run, and that an optimizer which was connected has open."""
        self._due = True
        if job in self._jobs.suspended:
            return
        self._jobs.suspended.add(job)
        if job not in self._jobs.records:
            self._jobs.close(job)  # the Close at its end got lost
            return
        needs = JobNeeds(job, self._jobs.records[job].needs, frozenset())
        self._memories.note_open(needs, self._needs_of_runs(with_workers=True))

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

    def connected(self, member: Member, job: str, told: ToldMemory) -> None:
        """Take account of a worker that has connected.

        Args:
            member: the worker.
            job: the job that it has built; empty for none.
            told: what it has told of its host's memory.
        """
        self.note_memory("worker", member.name, told)
        for known in self._misfits.values():
            known.pop(member.incarnation, None)
        if job:
            self._last_jobs[member.name] = job

    def lost(self, member: Member) -> None:
        """Take account of a worker that is gone; it gets its job again if it comes back soon."""
        self._due = True
        self._targets.pop(member.session, None)
        self._lent.discard(member.session)
        self._memories.forget("worker", member.name)
        self._last_jobs.pop(member.name, None)
        if member.job:
            self._last_jobs[member.name] = member.job
        while len(self._last_jobs) > MOST_KNOWN:
            del self._last_jobs[next(iter(self._last_jobs))]

    def note_report(self, body: WorkerBody) -> None:
        """Take account of a worker's report, which may have had it admitted or refused."""
        self._due = self._due or isinstance(body, pb.Ready | pb.Failure)

    def begin_check(self, sessions: frozenset[int]) -> None:
        """Keep idle workers from jobs while their meshes and links are checked."""
        self._checked = sessions

    def end_check(self) -> None:
        """Let the workers of a check serve jobs."""
        self._checked = frozenset()
        self._due = True

    # ---- decisions ----

    def decide(self, now: float, lived_seconds: float) -> list[tuple[Record, JobPlan]]:
        """Decide which worker serves which job, if something has changed; return the jobs to start, with their plans.

        Args:
            now: the time, on the monotonic clock.
            lived_seconds: how long the aggregator lives.
        """
        if not self._due or self._bucket.seconds_until(1, now):
            return []
        self._bucket.take(1, now)
        self._due = False
        self._note_misfits(now)
        waiting = self._jobs.startable(self._runs)
        later = waiting[MOST_CONSIDERED:]
        del waiting[MOST_CONSIDERED:]
        blocked = self._find_short_of_memory(waiting)
        blocked.update(self._jobs.describe_probation(self._runs, lived_seconds))
        resumed = [each for each, _ in waiting if each.job.state == RUNNING and each.job.id not in blocked]
        places = self._settings.max_running_jobs - len(self._runs)
        starts = {each.job.id for each in resumed[: max(0, places)]}
        views = self._view_jobs(waiting, starts, blocked, now)
        jobs = [each.id for each in views]
        decision = decide(views, self._view_workers(jobs, starts), self._settings)
        starts.update(decision.starts)
        self.waits = {job: wait for job, wait in decision.waits.items() if job not in self._runs}
        if not (starts or self._runs):
            # The first job starts in any case, and waits for workers as a running one: its log says so, and it is open.
            first = next((job for job in self.waits if job not in blocked), None)
            if first is not None:
                starts.add(first)
                del self.waits[first]
        text = f"{MOST_CONSIDERED} jobs come before it"
        places_left = enumerate(later, len(self.waits) + 1)
        self.waits.update((record.job.id, Wait(place, text)) for place, (record, _) in places_left)
        for job in decision.requeued if decision.starts else ():
            self._runs[job].stop(QUEUED, "its workers serve jobs that come first", now)
        self._direct(decision, starts, now)
        self._make_room(starts)
        return [(record, plan) for record, plan in waiting if record.job.id in starts]

    def _find_short_of_memory(self, waiting: Collection[tuple[Record, JobPlan]]) -> dict[str, str]:
        """Return for which memory of roles that are no workers the jobs wait, by job."""
        needs = {record.job.id: record.needs for record, _ in waiting if record.needs}
        return self._memories.find_shortages(needs, self._needs_of_runs(with_workers=True)) if needs else {}

    def _note_misfits(self, now: float) -> None:
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
                known.pop(member.incarnation, None)
                known[member.incarnation] = str(reason), now + self._unfit_seconds
                while len(known) > MOST_KNOWN:
                    del known[next(iter(known))]
            elif member.job in self._misfits:
                self._misfits[member.job].pop(member.incarnation, None)  # it was asked again
        for known in self._misfits.values():
            for incarnation in [each for each, (_, until) in known.items() if until < now]:
                del known[incarnation]

    # ---- what the scheduler is told ----

    def _view_jobs(
        self,
        waiting: Collection[tuple[Record, JobPlan]],
        starts: Collection[str],
        blocked: Mapping[str, str],
        now: float,
    ) -> list[JobView]:
        plans = {record.job.id: plan for record, plan in waiting}
        plans.update((job, run.plan) for job, run in self._runs.items())
        order = {job: place for place, job in enumerate(self._jobs.records)}
        ranked = sorted(plans, key=lambda job: (-self._jobs.records[job].job.priority, order[job]))
        left: dict[str, int] = {}  # by person: workers that their later jobs may have
        views = []
        for job in ranked:
            record, plan = self._jobs.records[job].job, plans[job]
            least = max(plan.min_workers, self._needed.get(job, 1))
            most = max(plan.max_workers, least)
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

    def _view_workers(self, jobs: Collection[str], starts: Collection[str]) -> Iterator[WorkerView]:
        for session, member in self._members.items():
            if session in self._checked:
                continue
            job = self._targets.get(session, member.job)
            if not job and self._last_jobs.get(member.name) in {*self._runs, *starts}:
                job = self._last_jobs[member.name]
            yield WorkerView(
                id=member.name,
                job="" if session in self._lent else job,
                unfit=self._find_misfits(member, jobs),
                settled=member.ready,
                # An idle worker costs nobody anything.
                move_seconds=(member.build_seconds or UNMEASURED_MOVE_SECONDS) if member.job else 0.0,
            )

    def has_others(self, job: str) -> bool:
        """Return whether there are workers that don't serve a job, and are not known not to fit it."""
        return any(each.job != job and not self._find_misfits(each, [job]) for each in self._members.values())

    def _find_misfits(self, member: Member, jobs: Collection[str]) -> dict[str, str]:
        """Return which of some jobs a worker does not fit, as far as is known, with the reasons."""
        running = self._needs_of_runs(with_workers=False) if self._memories.shares_host(member.name) else None
        found = {}
        for job in jobs:
            record, known = self._jobs.records[job], self._misfits.get(job, {}).get(member.incarnation)
            reason = "" if known is None else known[0]
            for each in record.job.excluded:
                if each.worker == member.name:
                    reason = each.reason
            if running is not None and job != member.job and not reason:
                reason = self._memories.find_small(member.name, record.needs, running)
            if reason:
                found[job] = reason
        return found

    # ---- what it decides ----

    def _direct(self, decision: Decision, starts: Collection[str], now: float) -> None:
        """Note for each worker which job it is to serve. One that no job needs is lent to one that may use it."""
        self._lent.clear()
        room = {job: self._room_of(job, decision) for job in [*self._runs, *starts]}
        for session, member in self._members.items():
            if session in self._checked:
                continue
            target = decision.assignment.get(member.name, "")
            if not target:
                target = self._lend(member, room)
            self._point(member, target, now)

    def _room_of(self, job: str, decision: Decision) -> int:
        """Return how many workers a job may have beyond those that the scheduler gives it: those that it waits for."""
        record, run = self._jobs.records[job], self._runs.get(job)
        plan = record.plan
        assert isinstance(plan, JobPlan)
        if run is not None and run.stops is not None:
            return 0
        given = sum(each == job for each in decision.assignment.values())
        return (plan.max_workers if plan.stages > 1 else plan.min_workers) - given

    def _lend(self, member: Member, room: dict[str, int]) -> str:
        """Return the job that a worker is lent to: its own, or another that it fits; empty for none."""
        own = member.job if member.job in self._runs and self._runs[member.job].stops is None else ""
        if own and not member.fits:
            self._lent.add(member.session)
            return own  # it may fit later
        misfits = self._find_misfits(member, room)
        for job in sorted(room, key=lambda each: each != own):
            if room[job] > 0 and job not in misfits:
                room[job] -= 1
                self._lent.add(member.session)
                return job
        refusing = [job for job in room if member.name in self._excluded_by(job)]
        if refusing and len(refusing) == len(room):
            self._lent.add(member.session)
            return refusing[0]  # which says why it takes no part
        return ""

    def _excluded_by(self, job: str) -> set[str]:
        return {each.worker for each in self._jobs.records[job].job.excluded}

    def _point(self, member: Member, target: str, now: float) -> None:
        self._targets.pop(member.session, None)
        if target == member.job:
            member.leaving_since_seconds = None
            return
        self._targets[member.session] = target
        if member.job and member.leaving_since_seconds is None:
            member.leaving_since_seconds = now

    def _make_room(self, starts: Collection[str]) -> None:
        """Close jobs that don't run and are open, unless there are memory and places for them beside those that run."""
        suspended = [job for job in self._jobs.rank_suspended() if job not in starts]
        if not suspended:
            return
        workers: dict[str, set[str]] = defaultdict(set)
        for session, member in self._members.items():
            workers[self._targets.get(session, member.job)].add(member.name)
        running = [
            JobNeeds(job, self._jobs.records[job].needs, frozenset(workers[job]))
            for job in [*self._runs, *starts]
        ]
        needs = {job: self._jobs.records[job].needs for job in suspended}
        short = self._memories.find_shortages(needs, running)
        kept = [job for job in suspended if job not in short]
        del kept[max(0, self._settings.max_running_jobs - len(running)) :]
        for job in suspended:
            if job not in kept:
                self._jobs.close(job)

    # ---- moves ----

    def departures(self, now: float) -> list[tuple[RunningJob, list[Member], str]]:
        """Return the workers that leave their jobs now, by job, with the reason."""
        found: dict[str, list[Member]] = defaultdict(list)
        for session in self._targets:
            member = self._members[session]
            run = self._runs.get(member.job)
            if run is not None and not run.ended and run.lets_go(member, now):
                found[member.job].append(member)
        return [
            (self._runs[job], members, self._why_they_leave(job, members)) for job, members in found.items()
        ]

    def _why_they_leave(self, job: str, members: list[Member]) -> str:
        stop = self._runs[job].stops
        if stop is not None:
            return stop.detail
        targets = {self._targets[each.session] for each in members} - {""}
        return f"it serves job {', '.join(sorted(targets))} now" if targets else "no job needs it now"

    def arrivals(self) -> list[tuple[RunningJob, list[Member]]]:
        """Return the workers that come to running jobs now, by job."""
        found: dict[str, list[Member]] = defaultdict(list)
        for session, job in list(self._targets.items()):
            member = self._members[session]
            if not member.job:
                del self._targets[session]
                if job in self._runs:
                    found[job].append(member)
        return [(self._runs[job], members) for job, members in found.items()]

    def describe_wait(self, lived_seconds: float) -> str | None:
        """Return one line on what the next job waits for; None if there is none."""
        if self._checked and self.waits:
            return "the next job waits for the end of `tiermesh check --cluster`"
        wait = next(iter(self.waits.values()), None)
        return None if wait is None else wait.reason


def _remaining_seconds(job: Job, plan: JobPlan) -> float | None:
    """Return the time that a job presumably takes, with as many workers as it had last; None if it is unknown."""
    if job.HasField("seconds_left"):
        return float(job.seconds_left)
    if not job.step_seconds:
        return None
    return estimate_seconds_left(plan, job.step, job.step_seconds, job.evaluation_seconds)
