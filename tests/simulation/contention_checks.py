"""Checks of which worker serves which job. They know the jobs' plans and what users did, not the scheduler's code."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from aggregator.core import events as ev
from aggregator.core.running_job import RunningJob
from aggregator.core.setting_aside import is_suspect
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import PAUSED, QUEUED
from protos.plane_pb2 import UpdatePart
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.job_model import SimulatedJob, require

if TYPE_CHECKING:
    from tests.simulation.simulated_aggregator import SimulatedAggregator
    from tests.simulation.simulated_cluster import SimulatedCluster

MOVE_SECONDS = 30.0
"""Time for a decision, moves of workers, their builds, and probations of jobs that an aggregator may have died of."""
STEPS_UNTIL_A_MOVE = 2
"""Steps of a job, from a decision on, after which workers that are to leave it have left."""
MOST_DECISION_SECONDS = 10.0
"""Time for a decision and the messages about it."""

DISTURBANCES = (ev.WorkerConnected, ev.WorkerLost, ev.OptimizerConnected, ev.OptimizerLost)
REQUESTS = (ev.Submitted, ev.PauseRequested, ev.PriorityRequested)


class ContentionChecks:
    """Checks of who serves whom, at each input of an aggregator's core but chunks, and of how long jobs wait.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._aggregator: SimulatedAggregator | None = None
        self._paused: set[str] = set()  # jobs that users know to be paused
        self._committed: dict[
            str, tuple[object, int]
        ] = {}  # by job: its optimizer, and the step that it comes to
        self._misfits: defaultdict[str, set[str]] = defaultdict(
            set
        )  # by job: incarnations that did not fit it
        self._excluded: set[tuple[str, str]] = set()  # jobs with the workers that they have found faulty
        self._leases: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # by session and lease
        self._commits: defaultdict[str, list[float]] = defaultdict(list)  # by job: times of its COMMITs
        self._since: dict[str, float] = {}  # since when jobs wait for what they should get
        self._ran_before: dict[str, frozenset[str]] = {}  # by such a job: the others that ran then
        self._keeps_some: set[str] = set()  # jobs that ran meanwhile, with too few workers
        self._quiet_since = 0.0
        self._served: dict[int, str] = {}
        self._must_stay: set[int] = set()
        self.expects_last_commits = True  # whether nobody has jobs closed without a checkpoint
        self._with_enough: set[str] = set()
        self._preempted: set[str] = set()

    # ---- what users do ----

    def paused(self, job: str) -> None:
        """Note that a user has paused a job, if the queue says so."""
        saved = self._cluster.disk.jobs.get(job)
        if saved is not None and (saved.job.state == PAUSED or saved.job.pausing):
            self._paused.add(job)

    def resumes(self, job: str) -> None:
        """Note that a user is about to resume a job."""
        self._paused.discard(job)

    # ---- the optimizer ----

    def committed(self, order: UpdatePart) -> None:
        """Note a committed step."""
        self._committed[order.job] = self._cluster.optimizer, order.step + 1
        self._commits[order.job].append(self._cluster.loop.now)

    def may_lose_steps(self, *jobs: str) -> None:
        """Note that the newest weights of jobs are lost, or could not be written."""
        for job in jobs:
            self._committed.pop(job, None)

    def loaded(self, job: str, step: int) -> None:
        """Check that a job goes on from its last COMMIT, unless a fault has taken what this one had made."""
        optimizer, committed = self._committed.get(job, (None, 0))
        if optimizer is self._cluster.optimizer and self.expects_last_commits:
            require(step >= committed, f"{job} goes on from step {step}, and step {committed} was committed")

    # ---- each input of an aggregator's core ----

    def before(self, aggregator: SimulatedAggregator, event: ev.Input) -> None:
        """Note what an input may change."""
        if isinstance(event, ev.PiecesArrived):
            return
        core, now = aggregator.core, self._cluster.loop.now
        if aggregator is not self._aggregator:
            self._aggregator, self._quiet_since = aggregator, now
            self._leases.clear()
        if isinstance(event, DISTURBANCES) or self._cluster.faults.are_felt:
            self._quiet_since = now
        self._served = {session: each.job for session, each in core.members.items()}
        self._with_enough = {job for job, run in core.runs.items() if self._has_enough(run)}
        if isinstance(event, REQUESTS):
            self._must_stay = {session for run in core.runs.values() for session in self._find_bound(run)}

    def _has_enough(self, run: RunningJob) -> bool:
        serving = [each for each in run.members.values() if each.fits and each.leaving_since_seconds is None]
        return len(serving) >= self._least(self._cluster.jobs[run.job.id])

    def _find_bound(self, run: RunningJob) -> Iterator[int]:
        """Yield the sessions of workers with leases of a step that can be finished: they stay until its COMMIT."""
        step_sum = run.lease_book.step_sum
        present = sum(each.present for each in run.members.values())
        if step_sum is None or step_sum.orphans() or present < run.plan.min_workers or run.stops is not None:
            return
        for session in run.members:
            if run.progress.version in self._leases[session].values():
                yield session

    def after(self, aggregator: SimulatedAggregator, event: ev.Input, effects: Sequence[ev.Effect]) -> None:
        """Check what a core's input has led to."""
        if isinstance(event, ev.PiecesArrived) or aggregator.replaced:
            return
        core = aggregator.core
        for job, run in core.runs.items():
            for session, member in run.members.items():
                known = core.members.get(session) is member and member.job == job
                require(known, f"{member.name} counts in {job}, and serves {member.job or 'none'}")
        for session, member in core.members.items():
            if member.job and self._served.get(session) != member.job:
                self._check_arrival(member.name, member.job)
            if member.job and not member.fits:
                self._misfits[member.job].add(member.incarnation)
        if isinstance(event, ev.PriorityRequested):
            self._ran_before.clear()  # what came first when it started may come later now
            if event.job in core.jobs.records:
                found = core.jobs.records[event.job].job.priority
                require(
                    found == event.priority, f"{event.job} has priority {found}, a user set {event.priority}"
                )
        going_on = [job for job, run in core.runs.items() if run.stops is None]
        fixed = sum(
            not core.runs[job].plan.preemptible for job in going_on
        )  # one may be resumed while it stops
        most = max(self._cluster.scenario.max_running_jobs, fixed)
        require(len(going_on) <= most, f"{going_on} run at once, expected at most {most}")
        self._check_stops(aggregator)
        if isinstance(event, ev.FromWorker) and isinstance(event.body, pb.Failure):
            self._leases[event.session].pop(event.body.lease, None)
            if event.session in core.members:  # it may have left the job at once
                self._misfits[event.body.job].add(core.members[event.session].incarnation)
        self._check_departures(event, effects)
        self._check_exclusions(aggregator)

    def _check_arrival(self, worker: str, job: str) -> None:
        require(job not in self._paused, f"{worker} is to serve {job}, which is paused")

    def _check_stops(self, aggregator: SimulatedAggregator) -> None:
        """Check that no job is stopped that may not be, unless it lacks workers."""
        self._preempted &= aggregator.core.runs.keys()
        for job, run in aggregator.core.runs.items():
            if run.stops is None or run.stops.state != QUEUED:
                continue
            self._cluster.injected["job preempted"] += job not in self._preempted
            self._preempted.add(job)
            may_stop = run.plan.preemptible or job not in self._with_enough
            require(may_stop, f"{job} is stopped: {run.stops.detail}; but it is not preemptible")

    def _check_departures(self, event: ev.Input, effects: Sequence[ev.Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, ev.ToWorker):
                continue
            held, body = self._leases[effect.session], effect.body
            match body:
                case pb.Lease(phase=pb.TRAIN):
                    held[body.lease] = body.generation, body.step
                case pb.Revoke():
                    held.pop(body.lease, None)
                case pb.Leave():
                    early = isinstance(event, REQUESTS) and effect.session in self._must_stay
                    require(
                        not early, f"a worker leaves {body.job} before the COMMIT of its lease: {body.reason}"
                    )
                    held.clear()

    def _check_exclusions(self, aggregator: SimulatedAggregator) -> None:
        """Check that a worker that a job has found faulty is excluded from all jobs that there are then."""
        records = aggregator.core.jobs.records
        for job, record in records.items():
            for each in record.job.excluded:
                if (job, each.worker) in self._excluded or not each.reason.startswith("faulty"):
                    continue
                self._excluded.add((job, each.worker))
                for other, known in records.items():
                    excluded = {every.worker for every in known.job.excluded}
                    require(
                        each.worker in excluded, f"{other} may use {each.worker}, which {job} found faulty"
                    )

    # ---- how long jobs wait ----

    def ticked(self, aggregator: SimulatedAggregator) -> None:
        """Check that no job waits for longer than the bound in docs/use/scheduling.md while nothing disturbs it."""
        if aggregator.replaced or not aggregator.running:
            return
        runs, entitled = aggregator.core.runs, set(self._find_entitled(aggregator))
        self._keeps_some = {job for job in entitled if job in runs or job in self._keeps_some}
        waits = {
            f"{job} waits for workers that are free, or of jobs that come later": job for job in entitled
        }
        waits |= {f"{job} is to stop, and does not": "" for job, run in runs.items() if run.stops is not None}
        halves = self._find_halves(aggregator)
        if len(halves) > 1:
            waits[f"{' and '.join(halves)} have some of the workers that each needs, and none has all"] = (
                halves[0]
            )
        now = self._cluster.loop.now
        self._since = {text: max(self._since.get(text, now), self._quiet_since) for text in waits}
        for text, job in waits.items():
            since, most = self._since[text], MOVE_SECONDS
            most += STEPS_UNTIL_A_MOVE * self._cluster.scenario.step_seconds
            if job in self._keeps_some or job in halves:
                most += STANDARD_TIMEOUTS.comeback
            elif job:
                most = min(most, self._until_moves(runs, since) - since + MOST_DECISION_SECONDS)
            require(now - since <= most, f"{text}, for {now - since:.0f} s")

    def _until_moves(self, runs: Iterable[str], since: float) -> float:
        """Return when all workers that were to leave running jobs from a time on have left; infinite if not yet."""
        left = [since]
        for job in runs:
            later = [each for each in self._commits[job] if each > since]
            left.append(later[STEPS_UNTIL_A_MOVE - 1] if len(later) >= STEPS_UNTIL_A_MOVE else math.inf)
        return max(left)

    def _ranked(self, aggregator: SimulatedAggregator) -> list[SimulatedJob]:
        """Return the jobs that may run, those that come first before others, by what the queue on disk says."""
        saved = self._cluster.disk.jobs
        order = list(saved)
        able = [
            job
            for job in aggregator.core.jobs.records
            if saved[job].job.state != PAUSED and not saved[job].job.pausing
        ]
        ranked = sorted(able, key=lambda job: (-saved[job].job.priority, order.index(job)))
        return [self._cluster.jobs[job] for job in ranked]

    @staticmethod
    def _least(job: SimulatedJob) -> int:
        """Return the number of workers that certainly suffice, in whole rows."""
        row = job.plan.stages if job.plan.min_workers >= job.plan.stages else 1
        return -(-job.fewest_workers // row) * row

    def _most(self, job: SimulatedJob) -> int:
        return max(self._least(job), job.plan.max_workers)

    def _find_entitled(self, aggregator: SimulatedAggregator) -> Iterator[str]:
        """Yield the jobs without workers that would have enough if those that come first had all that they can use.

        So would those that may not be stopped and ran when the job came to that state.
        """
        core, ranked = aggregator.core, self._ranked(aggregator)
        priority = {job.id: self._cluster.disk.jobs[job.id].job.priority for job in ranked}
        ran_before, self._ran_before = self._ran_before, {}
        for place, job in enumerate(ranked):
            run = core.runs.get(job.id)
            if (run is not None and self._has_enough(run)) or is_suspect(core.jobs.records[job.id].job):
                continue
            fitting = self._count_fitting(aggregator, job)
            if fitting < self._least(job):
                continue
            others = self._ran_before[job.id] = ran_before.get(job.id, frozenset(core.runs))
            fixed = [
                each
                for each in ranked[place + 1 :]
                if each.id in others and each.id in core.runs and not each.plan.preemptible
            ]
            taken = [
                self._most(each) if priority[each.id] > priority[job.id] else self._least(each)
                for each in ranked[:place]
            ]
            taken += [self._least(each) for each in fixed]
            places = self._cluster.scenario.max_running_jobs - len(taken)
            if fitting - sum(taken) >= self._least(job) and places > 0:
                yield job.id

    def _count_fitting(self, aggregator: SimulatedAggregator, job: SimulatedJob) -> int:
        check = aggregator.check
        excluded = {each.worker for each in aggregator.core.jobs.records[job.id].job.excluded}
        return sum(
            each.incarnation not in self._misfits[job.id]
            and each.name not in excluded
            and each.has_data_stream
            and not (check is not None and session in check.sessions)
            for session, each in aggregator.core.members.items()
        )

    def _find_halves(self, aggregator: SimulatedAggregator) -> list[str]:
        """Return the jobs that keep some workers, and not enough, though theirs together would do for one of them."""
        short: dict[str, int] = {}
        for job, run in aggregator.core.runs.items():
            serving = sum(each.fits for each in run.members.values())
            if run.stops is None and 0 < serving < self._least(self._cluster.jobs[job]):
                short[job] = serving
        fits_one = any(
            min(sum(short.values()), self._count_fitting(aggregator, self._cluster.jobs[job]))
            >= self._least(self._cluster.jobs[job])
            for job in short
        )
        return sorted(short) if fits_one else []
