"""Decide which worker serves which job.

Jobs have a rank: higher priority first, then age. Each priority is served in two passes, the highest priority first:

1. **`min_workers`, by age.** A job takes what it needs in this order: its own workers, idle ones, what other jobs have
   beyond their `min_workers`, then whole preemptible jobs of a later rank, the last one first. It gets all or nothing.
2. **The rest, by age, up to `max_workers`.** This stops no running job. A worker joins only if the move pays: the time
   that the job still takes, at most `payback_seconds`, is at least twice the time of the move.

Jobs that wait do not keep later ones from running, since those return their workers when the earlier job can start.
Two starts would cost more than they give, and don't happen: that of a job that could not be stopped again, on workers
that fit an earlier waiting job; and one so shortly before the start of that job that the move does not pay.

**Bound.** A job that fits starts, at the latest, as soon as enough fitting workers are free of two kinds of jobs: those
of an earlier rank, and those that ran when it was submitted and may not be stopped. Later jobs delay it by their
current step and the moves of the workers. So no job starves if the jobs before it end.

**No swaps.** A worker leaves a job only for one of an earlier rank, or for another's `min_workers`. A decision that is
carried out leads to the same one again. Where workers fit different jobs it may take two or three until nothing moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from aggregator.core.scheduling.start_times import StartTimes, seconds_left
from aggregator.core.scheduling.views import Decision, JobView, Settings, State, Wait, WorkerView
from services.printable import counted, join_reasons


def decide(jobs: Iterable[JobView], workers: Iterable[WorkerView], settings: Settings) -> Decision:
    """Decide which worker serves which job. Paused jobs get none."""
    return _Scheduler(jobs, workers, settings).decide()


class _Scheduler:
    """One decision. A worker is in the pool until a job claims it."""

    def __init__(self, jobs: Iterable[JobView], workers: Iterable[WorkerView], settings: Settings) -> None:
        self._settings = settings
        self._ranked = sorted(
            (job for job in jobs if job.state is not State.PAUSED), key=lambda job: job.rank
        )
        self._workers = list(workers)
        running = {job.id for job in self._ranked if job.state is State.RUNNING}
        present = [
            each for each in self._workers if not each.excluded and (each.job in running or not each.held)
        ]
        self._unfit = Counter(job for each in present for job in each.unfit)
        waiting = [
            job.id
            for job in reversed(self._ranked)
            if job.state is State.QUEUED
            and not job.blocked
            and len(present) - self._unfit[job.id] >= job.least
        ]
        bits = {job: 1 << place for place, job in enumerate(waiting)}
        # Jobs take first what the first in the queue can't use, so the highest bit is that of the first job.
        needs = {each.id: -sum(bits.get(job, 0) for job in each.unfit) for each in present}
        self._present = sorted(present, key=lambda each: (not each.held, needs[each.id], each.id))
        self._own: dict[str, list[WorkerView]] = defaultdict(list)
        idle: list[WorkerView] = []
        for each in self._present:
            serves = each.job in running and (each.held or each.job not in each.unfit)
            (self._own[each.job] if serves else idle).append(each)

        self._claims: dict[str, list[WorkerView]] = {}
        self._waits: dict[str, Wait] = {}
        self._start_times = StartTimes(min(settings.max_running_jobs, len(self._ranked)))
        self._locked_jobs: set[str] = set()
        self._locked: set[str] = set()
        """Workers of jobs that may not be stopped."""
        self._reserved: set[str] = set()
        """Workers that fit a waiting job: no job starts on them that could not be stopped again."""
        self._reserved_places = 0
        self._due: set[str] = set()
        """Workers that a waiting job will have so soon that moving them elsewhere before would not pay."""
        for own in self._own.values():
            # Those that have yet to build their job leave first.
            own.sort(key=lambda each: not (each.held or each.settled))
        surplus: list[WorkerView] = []
        cores: list[WorkerView] = []
        for job in reversed(self._ranked):
            core, others = self._divide(job)
            cores += core
            surplus += others
            may_stop = job.preemptible or job.id not in running or self._is_overdue(job)
            if not may_stop or any(each.held for each in core):
                self._locked_jobs.add(job.id)
                self._locked.update(each.id for each in core)
                self._start_times.take_place(job)
                self._start_times.take_workers(job, core)
        self._places = settings.max_running_jobs - len(self._locked_jobs)
        self._cores = {each.id for each in cores}
        """Workers without which a running job stops."""
        self._pool = {each.id: each for each in (*idle, *surplus, *cores)}
        """Workers that no job has claimed, in the order in which jobs take those of others."""

    def decide(self) -> Decision:
        for _, level in groupby(self._ranked, key=lambda job: job.priority):
            peers = list(level)
            for job in peers:
                self._give_least(job)
            for job in peers:
                self._give_more(job)
        self._cores.clear()  # what is left of them is of jobs that must stop
        for job in self._ranked:
            self._give_more(job)
        self._keep_spares()
        assignment = {
            each.id: each.job if each.job in self._claims or each.held else "" for each in self._workers
        }
        assignment.update(dict.fromkeys(self._pool, ""))
        for job_id, claimed in self._claims.items():
            assignment.update(dict.fromkeys((each.id for each in claimed), job_id))
        queued = {job.id: job.state is State.QUEUED for job in self._ranked}
        return Decision(
            assignment,
            starts=tuple(each for each in queued if queued[each] and each in self._claims),
            requeued=tuple(each for each in self._waits if not queued[each]),
            waits=self._waits,
        )

    # ---- the passes ----

    def _give_least(self, job: JobView) -> None:
        """Give a job its `min_workers`, or nothing. A running job that has too few may keep them for a while."""
        core, _ = self._divide(job)
        may_stay = len(core) >= job.least or job.id in self._locked_jobs or not self._is_overdue(job)
        keeps = job.state is State.RUNNING and may_stay and all(each.id in self._pool for each in core)
        is_final = not job.preemptible and not keeps
        fitting = len(self._present) - self._unfit[job.id]
        if job.blocked and job.state is State.QUEUED:
            self._wait(job, job.blocked)
        elif fitting < job.least and not keeps:
            self._wait(job, self._describe_misfit(job, fitting))
        elif job.id not in self._locked_jobs and self._places <= (self._reserved_places if is_final else 0):
            most = counted(self._settings.max_running_jobs, "job")
            self._wait(job, f"at most {most} may run at a time (max_running_jobs)", self._expect_start(job))
        elif keeps:
            found = self._find(job, job.least - len(core), self._cores)
            self._run(job, core + found if len(core) + len(found) >= job.least else core)
        else:
            own = self._still_own(job)[: job.least]
            found = own + self._find(job, job.least - len(own), self._reserved if is_final else ())
            if len(found) == job.least:
                self._run(job, found)
            else:
                workers = counted(job.least, "worker")
                reason = f"it needs {workers}, and jobs that come first leave {len(found)}"
                self._wait(job, reason, self._expect_start(job))
                self._reserve(job)

    def _give_more(self, job: JobView) -> None:
        """Give a job more workers, up to its `max_workers`, in whole rows."""
        claimed = len(self._claims.get(job.id, ()))
        room = job.most - claimed
        if claimed < job.least or room <= 0:
            return
        own = self._still_own(job)[:room]
        more = own + self._find(job, room - len(own), self._cores, must_pay=True)
        whole = len(more) - (claimed + len(more)) % job.row_workers
        self._claim(job, more[: whole if self._is_overdue(job) else max(whole, len(own))])

    def _keep_spares(self) -> None:
        """Leave workers of rows that are not whole where they are, if no job has taken them."""
        for job in self._ranked:
            if job.id in self._claims:
                self._claim(job, self._still_own(job)[: max(0, job.most - len(self._claims[job.id]))])

    # ---- claims ----

    def _run(self, job: JobView, workers: Sequence[WorkerView]) -> None:
        self._claims[job.id] = []
        self._claim(job, workers)
        if job.id not in self._locked_jobs:
            self._places -= 1
            self._start_times.take_place(job)

    def _claim(self, job: JobView, workers: Sequence[WorkerView]) -> None:
        for each in workers:
            del self._pool[each.id]
        self._claims[job.id] += workers
        self._start_times.take_workers(job, workers)

    def _find(
        self, job: JobView, count: int, barred: Collection[str] = (), *, must_pay: bool = False
    ) -> list[WorkerView]:
        """Return up to so many workers of the pool that a job may take, without its own."""
        found: list[WorkerView] = []
        if count <= 0:
            return found
        horizon_seconds = min(self._settings.payback_seconds, seconds_left(job))
        for each in self._pool.values():
            if (
                (each.job != job.id or job.state is State.QUEUED)
                and job.id not in each.unfit
                and each.id not in self._locked
                and each.id not in self._due
                and each.id not in barred
                and (not must_pay or _pays(each, horizon_seconds))
            ):
                found.append(each)
                if len(found) == count:
                    break
        return found

    def _divide(self, job: JobView) -> tuple[list[WorkerView], list[WorkerView]]:
        """Return the workers without which a running job stops, and its others."""
        own = self._own[job.id]
        core = max(job.least, sum(each.held for each in own))
        return own[:core], own[core:]

    def _still_own(self, job: JobView) -> list[WorkerView]:
        return [each for each in self._own[job.id] if each.id in self._pool]

    def _is_overdue(self, job: JobView) -> bool:
        return job.short_seconds >= self._settings.comeback_seconds

    # ---- waits ----

    def _wait(self, job: JobView, reason: str, start_seconds: float | None = None) -> None:
        self._waits[job.id] = Wait(len(self._waits) + 1, reason, start_seconds)

    def _expect_start(self, job: JobView) -> float | None:
        fitting = [each for each in self._present if job.id not in each.unfit]
        return self._start_times.expect(job, fitting) if len(fitting) >= job.least else None

    def _reserve(self, job: JobView) -> None:
        """Keep later jobs from delaying the start of one that waits for workers."""
        start_seconds = self._waits[job.id].start_seconds
        self._reserved_places += 1
        for each in self._pool.values():
            if job.id not in each.unfit:
                self._reserved.add(each.id)
                if start_seconds is not None and not _pays(each, start_seconds):
                    self._due.add(each.id)

    def _describe_misfit(self, job: JobView, fitting: int) -> str:
        present = len(self._present)
        reasons = join_reasons(
            {each.id: each.unfit[job.id] for each in self._present if job.id in each.unfit}
        )
        return (
            f"it needs {counted(job.least, 'worker')}, and {fitting} of the {present} connected fit it"
            f"{f'; not {reasons}' if reasons else ''}"
        )


def _pays(worker: WorkerView, seconds: float) -> bool:
    """Return whether a worker that moves now, and stays this long, computes for as long as it moves."""
    return seconds >= 2 * worker.move_seconds
