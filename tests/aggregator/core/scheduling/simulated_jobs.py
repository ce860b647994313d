"""A simulated cluster that gives its workers to jobs as the scheduler decides, and computes nothing."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.core.scheduling import scheduler
from aggregator.core.scheduling.views import Decision, JobView, Settings, State, WorkerView
from tests.aggregator.core.scheduling.decision_checks import InvalidDecision, check_decision, require
from tests.simulation.seeds import Outcome

ROUNDS = 5
"""Decisions that may follow one another when nothing else happens; the last one changes nothing."""
QUIET_TICK_SECONDS = 45.0
COMMAND = "tests.aggregator.core.scheduling"


@dataclass
class SimulatedJob:
    id: str
    order: int
    priority: int
    min_workers: int
    max_workers: int
    row_workers: int
    preemptible: bool
    work: float
    """Worker-seconds left."""
    state: State = State.QUEUED
    blocked: str = ""
    short_since: float | None = None
    is_uneven: bool = False
    waits_for: frozenset[str] | None = None
    """The jobs that must end before this one starts, at the latest, once nothing is disturbed."""

    @property
    def least(self) -> int:
        return -(-self.min_workers // self.row_workers) * self.row_workers


@dataclass
class SimulatedWorker:
    id: str
    move_seconds: float
    job: str = ""
    arrives: float = 0.0
    unfit: dict[str, str] = field(default_factory=dict)
    excluded: bool = False
    held: bool = False
    left: tuple[str, int] | None = None
    """The job that it left last, and how often jobs had started or ended then."""


class SimulatedJobs:
    """One seed: some jobs and workers, disturbed for a while, and then left alone until all jobs have ended.

    Args:
        seed: the seed.
        trace: called with each decision's text.
    """

    def __init__(self, seed: int, trace: Callable[[str], None] = lambda line: None) -> None:
        self.random = random.Random(seed)
        self.trace = trace
        self.now = 0.0
        self.move_seconds = self.random.choice([0.0, 5.0, 20.0, 60.0])
        self.settings = Settings(
            max_running_jobs=self.random.choice([1, 2, 3, 8]),
            comeback_seconds=self.random.choice([30.0, 120.0]),
            payback_seconds=self.random.choice([60.0, 600.0]),
        )
        self.estimates = self.random.choice(["exact", "none", "noisy"])
        self.jobs: dict[str, SimulatedJob] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self.gone: list[SimulatedWorker] = []
        self.decisions = self.moves = self.changes = self.ended = 0
        self.happened: Counter[str] = Counter()
        self.is_quiet = False
        self.last: Decision | None = None
        for number in range(self.random.randint(1, 8)):
            worker = SimulatedWorker(f"w{number}", self.move_seconds * self.random.choice([1, 1, 2]))
            self.workers[worker.id] = worker

    def run(self) -> None:
        """Run until all jobs that fit have ended, or an invariant is broken."""
        for _ in range(self.random.randint(5, 40)):
            self._advance(self.now + self.random.expovariate(1 / 40))
            self._disturb()
            self._settle()
        self._calm()
        self._settle()
        self._note_bounds()
        until = self.now + self._longest_seconds()
        while any(self._fits(job) for job in self.jobs.values()):
            require(self.now < until, f"jobs have not ended by {until:.0f} s: {', '.join(self.jobs)}")
            self._advance(self.now + QUIET_TICK_SECONDS)
            self._settle()

    # ---- what happens ----

    def _disturb(self) -> None:
        kinds = {
            self._submit: 6, self._kill: 3, self._join: 3, self._pause: 1, self._resume: 2,
            self._change_priority: 1, self._refuse: 1, self._exclude: 1, self._hold: 1, self._block: 1,
        }  # fmt: skip
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        if kind():
            self.changes += 1
            self.happened[kind.__name__.strip("_")] += 1
            self.trace(f"{self.now:.0f} s: {kind.__name__.strip('_')}")

    def _submit(self) -> bool:
        row = self.random.choice([1, 1, 1, 2, 3])
        least = self.random.randint(1, 4)
        job = SimulatedJob(
            f"j{self.ended + len(self.jobs)}", self.ended + len(self.jobs), self.random.choice([0, 0, 0, 1, 2]),
            least, least + self.random.choice([0, 1, 2, 8]), row, self.random.random() < 0.75,
            self.random.choice([20.0, 200.0, 2000.0]),
        )  # fmt: skip
        self.jobs[job.id] = job
        for worker in (*self.workers.values(), *self.gone):
            if self.random.random() < 0.15:
                worker.unfit[job.id] = "its mesh is 1x4"
        return True

    def _kill(self) -> bool:
        if len(self.workers) < 2:
            return False
        worker = self.workers.pop(self.random.choice(list(self.workers)))
        worker.job, worker.excluded, worker.held = "", False, False
        self.gone.append(worker)
        return True

    def _join(self) -> bool:
        if not self.gone:
            return False
        worker = self.gone.pop(self.random.randrange(len(self.gone)))
        self.workers[worker.id] = worker
        worker.left = None
        return True

    def _pause(self) -> bool:
        return self._change_job(lambda job: setattr(job, "state", State.PAUSED), State.QUEUED, State.RUNNING)

    def _resume(self) -> bool:
        return self._change_job(lambda job: setattr(job, "state", State.QUEUED), State.PAUSED)

    def _change_priority(self) -> bool:
        priority = self.random.randint(0, 2)
        return self._change_job(lambda job: setattr(job, "priority", priority), *State)

    def _block(self) -> bool:
        return self._change_job(
            lambda job: setattr(job, "blocked", "" if job.blocked else "waits for memory"), State.QUEUED
        )

    def _change_job(self, change: Callable[[SimulatedJob], None], *states: State) -> bool:
        chosen = [job for job in self.jobs.values() if job.state in states]
        if chosen:
            change(self.random.choice(chosen))
        return bool(chosen)

    def _refuse(self) -> bool:
        serving = [each for each in self.workers.values() if each.job and not each.held]
        if serving:
            worker = self.random.choice(serving)
            worker.unfit[worker.job] = "out of memory"
        return bool(serving)

    def _exclude(self) -> bool:
        worker = self.random.choice(list(self.workers.values()))
        worker.excluded, worker.held = not worker.excluded, False
        return True

    def _hold(self) -> bool:
        worker = self.random.choice(list(self.workers.values()))
        worker.held = not worker.held and bool(worker.job) and not worker.excluded
        return True

    def _calm(self) -> None:
        """End all disturbances: everyone is there, and nothing is paused or blocked."""
        while self._join():
            pass
        for worker in self.workers.values():
            worker.excluded = worker.held = False
        for job in self.jobs.values():
            job.blocked = ""
            if job.state is State.PAUSED:
                job.state = State.QUEUED
        self.is_quiet = True
        self.changes += 1
        self.trace(f"{self.now:.0f} s: calm")

    # ---- work ----

    def _advance(self, until: float) -> None:
        """Compute until then, with a decision at each end of a job and of a comeback."""
        while self.now < until:
            rates = {job.id: self._rate(job) for job in self.jobs.values()}
            ends = [self.now + self.jobs[each].work / rate for each, rate in rates.items() if rate]
            arrivals = [
                each.arrives for each in self.workers.values() if each.job and each.arrives > self.now
            ]
            comebacks = [
                job.short_since + self.settings.comeback_seconds
                for job in self.jobs.values()
                if job.short_since is not None
            ]
            following = [each for each in (*ends, *arrivals, *comebacks) if each > self.now]
            then = min([until, *following])
            for each, rate in rates.items():
                self.jobs[each].work -= rate * (then - self.now)
            self.now = then
            done = [job for job in self.jobs.values() if job.work < 1e-6]
            for job in done:
                del self.jobs[job.id]
                self.ended += 1
                self.changes += 1
                self.trace(f"{self.now:.0f} s: {job.id} ends")
            if done or then in comebacks:
                self._settle()

    def _rate(self, job: SimulatedJob) -> int:
        if job.state is not State.RUNNING:
            return 0
        there = sum(
            each.job == job.id and not each.excluded and job.id not in each.unfit and each.arrives <= self.now
            for each in self.workers.values()
        )
        return there - there % job.row_workers if there >= job.least else 0

    # ---- decisions ----

    def _settle(self) -> None:
        """Decide, and carry it out, until the decision is what is there."""
        for _ in range(ROUNDS):
            if not self._decide():
                break
        else:
            raise InvalidDecision(f"decisions do not settle in {ROUNDS} rounds")
        for job in self.jobs.values():
            before = [self.jobs[each] for each in job.waits_for or () if each in self.jobs]
            if job.waits_for is not None and not any(
                each.state is State.RUNNING or self._fits(each) for each in before
            ):
                require(
                    job.state is State.RUNNING,
                    f"{job.id} waits, though all that it had to wait for have ended",
                )

    def _decide(self) -> bool:
        jobs, workers = [self._view(job) for job in self.jobs.values()], self._worker_views()
        self.random.shuffle(jobs)
        decision = scheduler.decide(jobs, workers, self.settings)
        self.decisions += 1
        check_decision(jobs, workers, self.settings, decision)
        changed = bool(decision.starts or decision.requeued)
        for worker in self.workers.values():
            job = decision.assignment[worker.id]
            if job != worker.job:
                changed = True
                self._move(worker, job)
        self.changes += len(decision.starts) + len(decision.requeued)
        for each in decision.starts:
            self.jobs[each].state = State.RUNNING
        for each in decision.requeued:
            self.jobs[each].state = State.QUEUED
        if changed:
            shared = {
                job.id: " ".join(each.id for each in self.workers.values() if each.job == job.id)
                for job in self.jobs.values()
            }
            self.trace(f"    {shared}, waits {decision.waits}")
        for job in self.jobs.values():
            self._note_shortage(job)
        return changed

    def _move(self, worker: SimulatedWorker, job: str) -> None:
        self.moves += 1
        if job and worker.left == (job, self.changes):
            raise InvalidDecision(
                f"{worker.id} goes back to {job}, though nothing has happened since it left"
            )
        if worker.job:
            worker.left = worker.job, self.changes
        worker.job = job
        worker.arrives = self.now + worker.move_seconds

    def _note_shortage(self, job: SimulatedJob) -> None:
        has = sum(
            each.job == job.id and not each.excluded and job.id not in each.unfit
            for each in self.workers.values()
        )
        is_short, is_uneven = has < job.least, has % job.row_workers > 0
        if job.state is not State.RUNNING or not (is_short or is_uneven):
            job.short_since = None
        elif job.short_since is None or (is_short and job.is_uneven):
            job.short_since = self.now
        job.is_uneven = not is_short and is_uneven

    def _view(self, job: SimulatedJob) -> JobView:
        remaining = None
        if self.estimates != "none" and (rate := self._rate(job)):
            remaining = (
                job.work / rate * (1 if self.estimates == "exact" else self.random.choice([0.2, 1, 5]))
            )
        return JobView(
            id=job.id, order=job.order, state=job.state, priority=job.priority, min_workers=job.min_workers,
            max_workers=job.max_workers, row_workers=job.row_workers, preemptible=job.preemptible,
            remaining_seconds=remaining, blocked=job.blocked,
            short_seconds=0.0 if job.short_since is None else self.now - job.short_since + 1e-9,
        )  # fmt: skip

    def _worker_views(self) -> list[WorkerView]:
        return [
            WorkerView(each.id, each.job, dict(each.unfit), each.excluded, each.held, each.move_seconds)
            for each in self.workers.values()
        ]

    # ---- bounds ----

    def _fits(self, job: SimulatedJob) -> bool:
        return sum(job.id not in each.unfit for each in self.workers.values()) >= job.least

    def _note_bounds(self) -> None:
        """Note for each job which others must end before it starts, at the latest."""
        for job in self.jobs.values():
            if self._fits(job):
                job.waits_for = frozenset(
                    other.id
                    for other in self.jobs.values()
                    if other is not job
                    and (
                        (-other.priority, other.order) < (-job.priority, job.order)
                        or (other.state is State.RUNNING and not other.preemptible)
                    )
                )

    def _longest_seconds(self) -> float:
        """Return the time in which all jobs end even one after the other, each with its least workers."""
        fitting = [job for job in self.jobs.values() if self._fits(job)]
        work = math.fsum(job.work / job.least for job in fitting)
        moves = 2 * self.move_seconds * 4 * (len(fitting) + 1) ** 2
        return work + moves + self.settings.comeback_seconds + 3 * QUIET_TICK_SECONDS


def run_seed(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed to its end, or to its first broken invariant."""
    cluster = SimulatedJobs(seed, print if tracing else lambda line: None)
    problem = ""
    try:
        cluster.run()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return Outcome(seed, cluster.decisions, problem, cluster.happened)
