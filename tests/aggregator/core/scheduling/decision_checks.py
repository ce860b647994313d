"""Invariants of one decision of the scheduler. They are computed from what it was given, not with its own code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aggregator.core.scheduling.views import Decision, JobView, Settings, State, WorkerView


class InvalidDecision(AssertionError):
    """Invariant that a decision breaks."""


def check_decision(
    jobs: Sequence[JobView], workers: Sequence[WorkerView], settings: Settings, decision: Decision
) -> None:
    """Raise `InvalidDecision` if a decision breaks an invariant."""
    _DecisionChecks(jobs, workers, settings, decision).check()


class _DecisionChecks:
    def __init__(
        self,
        jobs: Sequence[JobView],
        workers: Sequence[WorkerView],
        settings: Settings,
        decision: Decision,
    ) -> None:
        self.jobs = sorted(
            (job for job in jobs if job.state is not State.PAUSED), key=lambda job: (-job.priority, job.order)
        )
        self.settings, self.decision = settings, decision
        self.all_workers = workers
        running = {job.id for job in self.jobs if job.state is State.RUNNING}
        self.workers = [
            each for each in workers if not each.excluded and (each.job in running or not each.held)
        ]
        self.least = {job.id: -(-job.min_workers // job.row_workers) * job.row_workers for job in self.jobs}
        self.most = {
            job.id: max(self.least[job.id], job.max_workers // job.row_workers * job.row_workers)
            for job in self.jobs
        }
        self.own: dict[str, list[WorkerView]] = {job.id: [] for job in self.jobs}
        for each in self.workers:
            if each.job in running and (each.held or each.job not in each.unfit):
                self.own[each.job].append(each)
        self.got: dict[str, list[WorkerView]] = {job.id: [] for job in self.jobs}
        for each in self.workers:
            if job := decision.assignment[each.id]:
                require(job in self.got, f"{each.id} is given to {job}, which does not run")
                self.got[job].append(each)
        self.held = {job.id: sum(each.held for each in self.own[job.id]) for job in self.jobs}
        self.core = {job.id: max(self.least[job.id], self.held[job.id]) for job in self.jobs}
        self.locked = {
            job.id
            for job in self.jobs
            if self.held[job.id]
            or (
                job.state is State.RUNNING
                and not job.preemptible
                and job.short_seconds < settings.comeback_seconds
            )
        }
        self.runs = {job.id for job in self.jobs if job.id not in decision.waits}

    def check(self) -> None:
        self.check_states()
        self.check_sizes()
        self.check_protected()
        self.check_minimums()
        self.check_surplus()
        self.check_stops()

    def check_states(self) -> None:
        decision = self.decision
        waiting = [job.id for job in self.jobs if job.id not in self.runs]
        require(list(decision.waits) == waiting, f"{waiting} wait, in this order")
        require(
            [each.position for each in decision.waits.values()] == [*range(1, len(waiting) + 1)], "positions"
        )
        require(all(each.reason for each in decision.waits.values()), "each wait has a reason")
        for state, named, are in (
            (State.QUEUED, decision.starts, self.runs),
            (State.RUNNING, decision.requeued, set(waiting)),
        ):
            wanted = tuple(job.id for job in self.jobs if job.state is state and job.id in are)
            require(named == wanted, f"{named} are named, and {wanted} change")
        count = len(self.runs)
        require(count <= max(self.settings.max_running_jobs, len(self.locked)), f"{count} jobs run")

    def check_sizes(self) -> None:
        for job in self.jobs:
            name, got, own = job.id, self.got[job.id], self.own[job.id]
            gained = [each for each in got if each not in own]
            require(not (name in self.decision.waits and got), f"{name} waits, and has workers")
            require(
                not any(name in each.unfit and not each.held for each in got), f"{name} got an unfit worker"
            )
            require(
                len(got) <= max(self.most[name], self.held[name]), f"{name} got {len(got)}, above its most"
            )
            require(len(got) % job.row_workers == 0 or not gained, f"{name} got {len(got)}: no whole rows")
            if name in self.runs and len(got) < self.least[name]:
                may = job.state is State.RUNNING and (
                    job.short_seconds < self.settings.comeback_seconds or self.held[name]
                )
                require(bool(may) and not gained, f"{name} runs with {len(got)}, below its least")

    def check_protected(self) -> None:
        for each in self.all_workers:
            if each.excluded or each.held:
                there = self.decision.assignment[each.id]
                require(there == each.job or (not there and not each.held), f"{each.id} moves, and may not")
        for name in self.locked:
            kept = [each for each in self.own[name] if each in self.got[name]]
            wanted = min(len(self.own[name]), self.core[name])
            require(name in self.runs and len(kept) >= wanted, f"{name} may not be stopped, and is")

    def check_minimums(self) -> None:
        """Check that no job waits that could have its `min_workers`, and that none which can't stop delays one."""
        barred: set[str] = set()  # workers for a job that waits
        due: set[str] = set()  # those of them that it gets too soon for anyone else
        someone_waits = False
        for index, job in enumerate(self.jobs):
            wait = self.decision.waits.get(job.id)
            earlier, later = self.jobs[:index], self.jobs[index + 1 :]
            if job.id in self.decision.starts and not job.preemptible:
                others = sum(each.id not in barred for each in self.got[job.id])
                require(
                    others >= self.least[job.id],
                    f"{job.id} can't be stopped, and starts on workers for which an earlier job waits",
                )
            if wait is None or (job.blocked and job.state is State.QUEUED) or not self.could_ever_run(job):
                continue
            full = self.settings.max_running_jobs - sum(
                each.id in self.runs if each in earlier else each.id in self.locked
                for each in (*earlier, *later)
            )
            if full <= 0:
                continue
            free = {each.id for each in self.fitting(job) if each.id not in due}
            # Earlier jobs of the same priority keep only what they need.
            for other in earlier:
                got = [each.id for each in self.got[other.id] if each.id in free]
                core = len(got) if other.priority > job.priority else min(len(got), self.core[other.id])
                free.difference_update(got[:core])
            for other in later:
                if other.id in self.locked:
                    kept = [each.id for each in self.got[other.id] if each.id in free]
                    free.difference_update(kept[: self.core[other.id]])
            # One that could not be stopped leaves what is free to an earlier job that waits.
            if job.preemptible or not someone_waits:
                require(len(free) < self.least[job.id], f"{job.id} waits, and {sorted(free)} are free for it")
            someone_waits = True
            for each in self.fitting(job):
                if not self.is_taken(each, job):
                    barred.add(each.id)
                if wait.start_seconds is not None and wait.start_seconds < 2 * each.move_seconds:
                    due.add(each.id)
        self.due = due

    def check_surplus(self) -> None:
        """Check that the rest goes by rank, and that moves pay."""
        for index, job in enumerate(self.jobs):
            got = self.got[job.id]
            if job.id not in self.runs or len(got) < self.least[job.id]:
                continue
            gained = [each for each in got if each not in self.own[job.id]]
            needed = self.least[job.id] - len(got) + len(gained)
            unpaid = [each for each in gained if not self.pays(job, each)]
            require(len(unpaid) <= max(0, needed), f"the moves of {unpaid} to {job.id} do not pay")
            room = self.most[job.id] - len(got)
            lacking = job.row_workers - len(got) % job.row_workers
            if room < lacking:
                continue
            offered = sum(
                self.is_offered(job, each) for each in self.workers if not self.decision.assignment[each.id]
            )
            for other in self.jobs[index + 1 :]:
                fit = sum(self.is_offered(job, each) for each in self.got[other.id])
                offered += max(0, fit - self.core[other.id])
            require(
                offered < lacking, f"{offered} workers that {job.id} could use are with later jobs, or idle"
            )

    def check_stops(self) -> None:
        """Check that only another job's `min_workers` stop a running job."""
        for index, job in enumerate(self.jobs):
            short = len(self.own[job.id]) < self.least[job.id]
            overdue = job.short_seconds >= self.settings.comeback_seconds
            if job.id not in self.decision.requeued or overdue:
                continue
            if len(self.runs) >= self.settings.max_running_jobs:
                continue
            needy = [
                other.id
                for other in self.jobs[:index]
                if other.id in self.runs
                and (
                    other.state is State.QUEUED
                    or not set_of(self.own[other.id]) <= set_of(self.got[other.id])
                    or len(self.own[other.id]) < self.least[other.id]
                )
            ]
            require(bool(needy), f"{job.id} is stopped for nothing{' while it is short' * short}")

    def could_ever_run(self, job: JobView) -> bool:
        return len(self.fitting(job)) >= self.least[job.id]

    def fitting(self, job: JobView) -> list[WorkerView]:
        return [each for each in self.workers if job.id not in each.unfit]

    def is_taken(self, worker: WorkerView, job: JobView) -> bool:
        """Return whether a worker has gone to an earlier job, or may not leave a later one."""
        there = self.decision.assignment[worker.id]
        rank = {other.id: place for place, other in enumerate(self.jobs)}
        return bool(there) and (rank[there] < rank[job.id] or there in self.locked)

    def is_offered(self, job: JobView, worker: WorkerView) -> bool:
        return (
            job.id not in worker.unfit
            and not worker.held
            and worker.id not in self.due
            and self.pays(job, worker)
        )

    def pays(self, job: JobView, worker: WorkerView) -> bool:
        left = self.settings.payback_seconds
        if job.remaining_seconds is not None:
            left = min(left, job.remaining_seconds)
        return left >= 2 * worker.move_seconds


def set_of(workers: Iterable[WorkerView]) -> set[str]:
    return {each.id for each in workers}


def require(holds: bool, invariant: str) -> None:
    if not holds:
        raise InvalidDecision(invariant)
