"""Which worker serves which job: the scheduler decides, and workers move once their leases have been committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from aggregator.core.job_report import Record
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.membership.members import Member
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduler_input import SchedulerInput
from aggregator.core.scheduling.scheduler import decide
from aggregator.core.scheduling.views import Decision, Settings, Wait
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import QUEUED, RUNNING
from services.protocol.envelope import WorkerBody
from services.protocol.plan import JobPlan
from services.token_bucket import TokenBucket

DECISIONS_AT_ONCE = 50
"""Number of decisions that may follow each other at once; beyond them, there is one a second."""
MOST_CONSIDERED = 100
"""Number of waiting jobs that a decision considers, those that come first."""


class Assignments:
    """The workers' jobs, and the moves between them that were decided and have yet to happen.

    Args:
        members: the connected workers, by session.
        runs: the running jobs, by id.
        jobs: the jobs that have not ended.
        scheduler_input: shows jobs and workers to the scheduler.
        settings: what an operator sets.

    Attributes:
        waits: why jobs wait, by job, in the order in which they come.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        runs: Mapping[str, RunningJob],
        jobs: LiveJobs,
        scheduler_input: SchedulerInput,
        settings: Settings,
    ) -> None:
        self._members = members
        self._runs = runs
        self._jobs = jobs
        self._input = scheduler_input
        self._settings = settings
        self._bucket = TokenBucket(1.0, DECISIONS_AT_ONCE)
        self._due = True
        self._targets: dict[
            int, str
        ] = {}  # by session: the job of a worker that is on its way to it, or to none
        self._lent: set[int] = set()  # sessions of workers that no job needs, and that one has all the same
        self._checked: frozenset[int] = frozenset()  # sessions of workers that take part in a check of links
        self.waits: dict[str, Wait] = {}

    # ---- what happens ----

    def note_change(self) -> None:
        """Have workers be shared out again: a job came, ended or changed."""
        self._due = True

    def note_tick(self) -> None:
        """Have workers be shared out again, unless there is no job: one may have lost a worker without a report."""
        self._due = self._due or bool(self.waits or self._runs)

    def lost(self, member: Member) -> None:
        """Take account of a worker that is gone."""
        self._due = True
        self._targets.pop(member.session, None)
        self._lent.discard(member.session)

    def note_report(self, body: WorkerBody) -> None:
        """Take account of a worker's report, which may have had it admitted or refused."""
        self._due = self._due or isinstance(body, pb.Ready | pb.Failure)

    def begin_check(self, sessions: Iterable[int]) -> None:
        """Keep idle workers from jobs while their meshes and links are checked."""
        self._checked = frozenset(sessions)

    @property
    def is_checking(self) -> bool:
        """Whether idle workers are being checked, and so serve no job."""
        return bool(self._checked)

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
        self._input.note_misfits(now)
        waiting = self._jobs.startable(self._runs)
        later = waiting[MOST_CONSIDERED:]
        del waiting[MOST_CONSIDERED:]
        blocked = self._input.find_short_of_memory(waiting)
        blocked.update(self._jobs.describe_probation(self._runs, lived_seconds))
        resumed = [each for each, _ in waiting if each.job.state == RUNNING and each.job.id not in blocked]
        places = self._settings.max_running_jobs - len(self._runs)
        starts = {each.job.id for each in resumed[: max(0, places)]}
        jobs = self._input.view_jobs(waiting, starts, blocked, now)
        free = {session: job for session, job in self._serving().items() if session not in self._checked}
        workers = self._input.view_workers(free, self._lent, [each.id for each in jobs], starts)
        decision = decide(jobs, workers, self._settings)
        starts.update(decision.starts)
        self.waits = {job: wait for job, wait in decision.waits.items() if job not in self._runs}
        if not (starts or self._runs):
            # The first job starts in any case, and waits for workers as a running one: its log says so, and it is open.
            first = next((job for job in self.waits if job not in blocked), None)
            if first is not None:
                starts.add(first)
                del self.waits[first]
        in_order = enumerate(self.waits.items(), 1)
        self.waits = {job: replace(wait, position=place) for place, (job, wait) in in_order}
        text = f"{MOST_CONSIDERED} jobs come before it"
        places_left = enumerate(later, len(self.waits) + 1)
        self.waits.update((record.job.id, Wait(place, text)) for place, (record, _) in places_left)
        going_on = len(starts) + sum(run.stops is None for run in self._runs.values())
        # Without a reason to stop, a job that lacks workers waits for them as a running one.
        if decision.starts or going_on > self._settings.max_running_jobs:
            starts.difference_update(decision.requeued)  # which ran under the aggregator before this one
            for job in filter(self._runs.__contains__, decision.requeued):
                self._runs[job].stop(QUEUED, "its workers serve jobs that come first", now)
        self._direct(decision, starts, now)
        self._make_room(starts)
        return [(record, plan) for record, plan in waiting if record.job.id in starts]

    def _serving(self) -> dict[int, str]:
        """Return the job that each worker serves or is on its way to, by session; empty for none."""
        return {session: self._targets.get(session, each.job) for session, each in self._members.items()}

    # ---- what it decides ----

    def _direct(self, decision: Decision, starts: Collection[str], now: float) -> None:
        """Note for each worker which job it is to serve. One that no job needs is lent to one that may use it."""
        self._lent.clear()
        going_on = [job for job, run in self._runs.items() if run.stops is None]
        room = {job: self._room_of(job, decision) for job in [*going_on, *starts]}
        for session, member in self._members.items():
            if session in self._checked:
                continue
            target = decision.assignment.get(member.name, "")
            if not target:
                target = self._lend(member, room)
            self._point(member, target, now)

    def _room_of(self, job: str, decision: Decision) -> int:
        """Return how many workers a job may have beyond those that the scheduler gives it: those that it waits for."""
        plan = self._jobs.records[job].plan
        assert isinstance(plan, JobPlan)
        least, most = self._input.limits_of(job, plan)
        given = sum(each == job for each in decision.assignment.values())
        return (most if plan.stages > 1 else least) - given

    def _lend(self, member: Member, room: dict[str, int]) -> str:
        """Return the job that a worker is lent to: its own, or another that it fits; empty for none."""
        own = member.job if member.job in room else ""
        if own and not member.fits:
            self._lent.add(member.session)
            return own  # it may fit later
        misfits = self._input.find_misfits(member, room)
        # To ask an idle worker again costs nothing.
        lasting = self._input.find_misfits(member, room, lasting=True)
        for job in sorted(room, key=lambda each: (each in misfits, each != own)):
            if room[job] > 0 and job not in lasting:
                room[job] -= 1
                self._lent.add(member.session)
                return job
        refusing = [job for job in room if self._input.find_bar(member, job)]
        if refusing and len(refusing) == len(room):
            self._lent.add(member.session)
            return refusing[0]  # which says why it takes no part
        return ""

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
        kept = self._input.find_with_room(suspended, starts, self._serving())
        del kept[max(0, self._settings.max_running_jobs - len(self._runs) - len(starts)) :]
        for job in suspended:
            if job not in kept:
                self._jobs.close(job)

    # ---- moves ----

    def departures(self) -> list[tuple[RunningJob, list[Member]]]:
        """Return the workers that are to leave their jobs as soon as these let them go, by job."""
        found: dict[str, list[Member]] = defaultdict(list)
        for session in self._targets:
            member = self._members[session]
            run = self._runs.get(member.job)
            if run is not None and not run.ended:
                found[member.job].append(member)
        return [(self._runs[job], members) for job, members in found.items()]

    def describe_departure(self, run: RunningJob, members: Iterable[Member]) -> str:
        """Return why workers leave a job."""
        if run.stops is not None:
            return run.stops.detail
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
