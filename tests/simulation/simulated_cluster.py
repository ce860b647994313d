"""A whole simulated cluster: processes, disk and users, from a seed to the end of every job."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from google.protobuf.message import Message

from aggregator.core.cluster_status import describe_waits
from aggregator.core.events import Note
from aggregator.core.succession import raise_restored_epoch
from aggregator.storage.schema import LIVE_STATES
from protos.jobs_pb2 import QUEUED, Job
from protos.plane_pb2 import UpdatePart
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation import history
from tests.simulation.contention_checks import ContentionChecks
from tests.simulation.disk import Disk, QueueBackup
from tests.simulation.faults import HANG_SECONDS, LONG_PART_SECONDS, Faults
from tests.simulation.job_checks import JobChecks
from tests.simulation.job_model import SimulatedJob, SimulationFailed, require
from tests.simulation.links import Link
from tests.simulation.network import Loop
from tests.simulation.process import Process
from tests.simulation.scenario import IMPOSTOR, LIAR, MOST_PAUSE_SECONDS, MOST_SECONDS, OVERSTATER, Scenario
from tests.simulation.simulated_aggregator import SimulatedAggregator
from tests.simulation.simulated_optimizer import SimulatedOptimizer
from tests.simulation.simulated_shard import SimulatedShard
from tests.simulation.simulated_worker import SimulatedWorker

PATIENCE_SECONDS = 300.0
"""Longest time without progress in virtual seconds, whatever faults happen."""
BACKUP_SECONDS = 8.0
"""Interval between two backups of the queue."""
CLOSE_EPOCHS = 20
"""Distance within which two restored queues may come to the same epoch."""
RECOVERY_SECONDS = 120.0
"""Time that the last fault may cost after its end, in addition to repeated steps."""


class SimulatedCluster:
    """One run of a seed.

    Args:
        seed: source of all decisions.
        tracing: whether to print inputs and effects.
        make_core: function that builds cores, so that a test can record or change them.
        scenario: scenario to run instead of the seed's.

    Attributes:
        injected: number of injected faults, by kind.
    """

    distrusted = IMPOSTOR
    """Worker that a person overrules."""
    counts_are_true = True
    """Whether the optimizer is told what counts in a step."""
    aggregator_type: type[SimulatedAggregator] = SimulatedAggregator
    optimizer_type: type[SimulatedOptimizer] = SimulatedOptimizer

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        make_core: Callable[..., Any] | None = None,
        scenario: Scenario | None = None,
    ) -> None:
        self.injected: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self.tracing = tracing
        self.scenario = scenario or Scenario.of(seed, self.rng)
        self.loop = Loop()
        self.disk = Disk(plans={job.id: job.plan for job in self.scenario.jobs})
        self.jobs = {job.id: job for job in self.scenario.jobs}
        self.make_core = make_core or (lambda kind, **arguments: kind(**arguments))
        self.links: list[Link] = []
        self.workers: dict[str, SimulatedWorker] = {}
        self.shards: list[SimulatedShard] = []
        self.aggregator: SimulatedAggregator | None = None
        self.optimizer: SimulatedOptimizer | None = None
        self.commits = 0
        self.history = history.HistoryChecker()
        self.checks = JobChecks(self.jobs, self.history)
        self.contention = ContentionChecks(self)
        self.faults = Faults(self)
        self.code = "old"
        self._lives = 0
        self._deaths = random.Random(
            seed
        )  # a generator of its own, so that it changes nothing else of a seed
        self._checks = random.Random(seed)
        self._progress_seconds = 0.0
        self._backups: list[QueueBackup] = []
        self._acknowledged: set[str] = set()  # jobs that users know to be in the queue
        self._leaders: dict[int, SimulatedAggregator] = {}  # by epoch: the aggregator that peers have obeyed

    # ---- the run ----

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            SimulationFailed: a check failed.
        """
        for job in self.scenario.jobs:
            self.loop.at(job.submitted_seconds, self._submit, job.id)
            if job.cancelled_seconds is not None:
                self.loop.at(job.cancelled_seconds, self._cancel, job.id)
            for seconds, _ in job.pauses:
                self.loop.at(seconds, self._pause, job.id)
            if job.pauses:
                self.loop.at(job.pauses[0][0], self._resume, job.id)
            for seconds, priority in job.priorities:
                self.loop.at(seconds, self._set_priority, job.id, priority)
        for index in range(self.scenario.shards):
            self._start_shard(index)
        self._start_optimizer()
        self.start_aggregator()
        names = [f"worker{number}" for number in range(self.scenario.workers)]
        if self.scenario.impostor:
            self._start_worker(IMPOSTOR, "another" if self.scenario.impostor == "fingerprint" else "same")
            self.loop.at(10.0, self._decide)
        if self.scenario.overstates:
            self._start_worker(OVERSTATER)
        for number, name in enumerate(names):
            self.loop.at(self.rng.random() * (5 if not number else 40), self._start_worker, name)
        if self.scenario.odd_worker:
            self.loop.at(60.0, self._start_worker, "odd", "another")
        if self.scenario.liar:
            self.loop.at(60.0, self._start_worker, LIAR)
        if self.scenario.upgrade_seconds is not None:
            self.loop.at(self.scenario.upgrade_seconds, self._upgrade)
        if "restore" in self.scenario.fault_kinds:
            self._back_up()
        for seconds in self.scenario.checks:
            self.loop.at(seconds, self._check_links)
        self.loop.at(10.0, self._watch)
        self.faults.advance(self.commits)
        while self.disk.unfinished or not self._all_submitted:
            self.loop.step()
        self.checks.ended(self.disk)

    @property
    def _all_submitted(self) -> bool:
        """Whether each job is in the queue, or was and is lost since a backup from before it was restored."""
        return self.jobs.keys() <= self.disk.jobs.keys() | self._acknowledged

    def _watch(self) -> None:
        """Check that the cluster makes progress."""
        self.faults.check_hangs()
        idle = self.loop.now - self._progress_seconds
        if idle > self.patience_seconds():
            aggregator = self.aggregator
            waits = (
                describe_waits(aggregator.core, self.loop.now)
                if aggregator and aggregator.alive
                else "no aggregator"
            )
            raise SimulationFailed(f"no progress for {idle:.0f} virtual seconds; waiting for {waits}")
        require(self.loop.now < MOST_SECONDS, f"not finished after {MOST_SECONDS:.0f} virtual seconds")
        check = self.aggregator.check if self.aggregator is not None and self.aggregator.alive else None
        if check is not None:
            check.require_an_end()
            self.moved()
        if self.faults.active and self.faults.over and self._all_submitted and check is None:
            self._end_faults()
        if not self.faults.active:
            self.history.add(history.Ticked(self.loop.now / STANDARD_TIMEOUTS.tick))
        self.loop.after(10.0, self._watch)

    def patience_seconds(self) -> float:
        """Return the longest time without progress."""
        parted_seconds = (LONG_PART_SECONDS + STANDARD_TIMEOUTS.unfit) * self.faults.parted_long
        return PATIENCE_SECONDS + 2 * HANG_SECONDS * bool(self.faults.hung) + parted_seconds

    def _end_faults(self) -> None:
        """End all faults, and bound the rest of the run."""
        self.faults.end()
        left, left_pauses = 0.0, 0
        for name, saved in self.disk.jobs.items():
            job = self.jobs[name]
            if saved.job.state in LIVE_STATES:
                found = self.disk.newest_checkpoint(job.id)
                left += (job.plan.steps - (found[0].step if found else 0)) * (1 + job.plan.verify_fraction)
                left_pauses += len(job.pauses)
        left_seconds = RECOVERY_SECONDS + left * self.scenario.step_seconds
        if self.scenario.upgrade_seconds is not None:  # workers of old code are waited for first
            left_seconds += STANDARD_TIMEOUTS.comeback
        left_seconds += left_pauses * (MOST_PAUSE_SECONDS + STANDARD_TIMEOUTS.stall)
        bound = left_seconds / STANDARD_TIMEOUTS.tick
        self.history.add(history.FaultsEnded(self.loop.now / STANDARD_TIMEOUTS.tick, bound))

    def trace(self, title: str, arrow: str, what: object) -> None:
        """Print a line of the trace."""
        if self.tracing:
            print(f"{self.loop.now:10.4f} {title:14} {arrow} {described(what)[:300]}")

    # ---- users ----

    def _submit(self, job: str) -> None:
        """Submit a job, and retry until it is acknowledged."""
        if job in self.disk.jobs:
            self._acknowledged.add(job)
            return
        submitted = self.jobs[job]
        if self.aggregator is not None and self.aggregator.running and self._can_start(submitted):
            plan = submitted.plan
            record = Job(id=job, name=job, state=QUEUED, steps=plan.steps, step=submitted.first_step)
            record.priority = plan.priority
            self.aggregator.submit(record, plan)
        self.loop.after(1.0, self._submit, job)

    def _can_start(self, job: SimulatedJob) -> bool:
        """Return whether the job that this one goes on from has ended; the start is settled then."""
        if job.earlier is None:
            return True
        saved = self.disk.jobs.get(job.earlier.id)
        if saved is None or saved.job.state in LIVE_STATES:
            return False
        found = self.disk.newest_checkpoint(job.earlier.id)
        assert found is not None
        if not job.first_step:
            job.begin_at(found[0].step, found[1])
        return True

    def _cancel(self, job: str) -> None:
        self.checks.cancelled(job)
        saved = self.disk.jobs.get(job)
        if saved is not None and saved.job.state not in LIVE_STATES:
            return
        if self.aggregator is not None and self.aggregator.running:
            self.aggregator.cancel(job)
        self.loop.after(1.0, self._cancel, job)

    def _pause(self, job: str) -> None:
        """Pause a job, if it is in the queue and an aggregator answers."""
        if self.aggregator is not None and self.aggregator.running:
            self.injected["pause of a job"] += self.aggregator.pause(job)
            self.contention.paused(job)

    def _resume(self, job: str) -> None:
        """Resume a job whenever nobody wants it paused, again and again, since a restored queue may have it paused."""
        saved = self.disk.jobs.get(job)
        if saved is not None and saved.job.state not in LIVE_STATES:
            return
        wanted = not self.jobs[job].is_paused_at(self.loop.now)
        if wanted and self.aggregator is not None and self.aggregator.running:
            self.contention.resumes(job)
            self.aggregator.resume(job)
        self.loop.after(1.0, self._resume, job)

    def _set_priority(self, job: str, priority: int) -> None:
        """Change a job's priority, if it is in the queue and an aggregator answers."""
        if self.aggregator is not None and self.aggregator.running:
            self.injected["change of a priority"] += self.aggregator.set_priority(job, priority)

    def _decide(self) -> None:
        """Trust an honest worker where workers disagree, unless the one that is distrusted leaves by itself."""
        aggregator = self.aggregator
        for name, saved in self.disk.jobs.items():
            claims = saved.job.claims
            honest = [
                each.worker for claim in claims for each in claim.claimants if each.worker != self.distrusted
            ]
            contended = any(each.contends for each in claims)
            impostors = bool(claims) and self.distrusted in {each.worker for each in claims[0].claimants}
            stays = impostors and (claims[0].bound or not self.scenario.impostor_leaves)
            if honest and (contended or stays) and aggregator is not None and aggregator.running:
                self.injected["a person decides"] += aggregator.trust(name, honest[-1])
        self.loop.after(10.0, self._decide)

    def _check_links(self) -> None:
        """Begin a check of meshes and links, or retry while a job runs. It adds to the faults, and ends with them."""
        aggregator, draw = self.aggregator, self._checks
        hangs_up_after_seconds = draw.choice((0.5, 5.0, 300.0)) * draw.random()
        if not self.faults.active:
            return
        if aggregator is None or not aggregator.running or not aggregator.begin_check(hangs_up_after_seconds):
            self.loop.after(draw.random(), self._check_links)
            return
        self.injected["check of meshes and links"] += 1

    # ---- backups of the queue ----

    def _back_up(self) -> None:
        self._backups.append(self.disk.back_up_queue())
        self.loop.after(BACKUP_SECONDS, self._back_up)

    def restore_queue(self) -> None:
        """Stop the aggregator, and put an earlier backup in place of its queue, which may be lost. It starts again."""
        self.injected["queue restored"] += 1
        backup = self.rng.choice(self._backups)
        if self.aggregator is not None:
            self.aggregator.die_if_alive()
        replaced = self.disk.epoch if self.rng.random() < 0.5 else 0
        self.disk.restore_queue(backup)
        self.skip_epochs(backup.epoch, replaced)

    def skip_epochs(self, own: int, seen: int) -> None:
        """Raise the epoch of a queue that is an older copy.

        Draws that come near an epoch of before are left out: they are one in hundreds, and would use an epoch twice.
        """
        while True:
            chance = self.rng.random()
            epoch = raise_restored_epoch(own, seen, chance)
            if all(abs(epoch - each) >= CLOSE_EPOCHS for each in self._leaders):
                return self.disk.skip_epochs(own, seen, chance)

    def obeyed(self, peer: str, leader: SimulatedAggregator) -> None:
        """Check that an epoch which a worker or optimizer obeys is one aggregator's alone."""
        first = self._leaders.setdefault(leader.epoch, leader)
        require(first is leader, f"{peer} obeys two aggregators of epoch {leader.epoch}")

    # ---- processes ----

    def start_aggregator(self) -> None:
        """Start an aggregator with the next epoch, even if another one is alive."""
        self.disk.epoch += 1
        if self.scenario.tiers == 2:
            self._start_optimizer()
        self.aggregator = self.aggregator_type(self, self.disk.epoch)

    def _start_optimizer(self) -> None:
        self._lives += 1
        self.optimizer = self.optimizer_type(self, self._lives)

    def _start_shard(self, index: int) -> None:
        self._lives += 1
        self.shards[index : index + 1] = [SimulatedShard(self, index, self._lives)]

    def _start_worker(self, name: str, fingerprint: str = "same") -> None:
        self._lives += 1
        self.workers[name] = self.worker_type(name)(self, name, self._lives, fingerprint, self.code)

    def worker_type(self, name: str) -> type[SimulatedWorker]:
        """Return the type of a worker of this name."""
        return SimulatedWorker

    def compute_dies(self) -> bool:
        """Return whether a compute process dies now that was given work."""
        dies = self.faults.active and self._deaths.random() < self.scenario.compute_deaths
        if dies:
            self.injected["compute process dies"] += 1
        return dies

    def _upgrade(self) -> None:
        """Replace the workers one by one by others of new code."""
        self.code = "new"
        for worker in list(self.workers.values()):
            self.loop.after(self.rng.random() * 60, worker.die_if_alive)

    def died(self, process: Process) -> None:
        """Cut the links of a dead process, and restart it some time later."""
        process.alive = False
        self.injected[f"{type(process).__name__.removeprefix('Simulated').lower()} dies"] += 1
        self._cut_links_of(process)
        delay = 0.02 + self.rng.random() ** 4 * self.scenario.restart_seconds
        self.faults.disturb(delay)
        if isinstance(process, SimulatedWorker):
            others = [
                each
                for each in self.workers.values()
                if each.alive and each.name not in ("odd", IMPOSTOR, OVERSTATER, LIAR)
            ]
            if process.name == IMPOSTOR and self.scenario.impostor_leaves and process.left:
                return
            stays_dead = len(others) >= self.scenario.workers_needed and self.rng.random() < 0.3
            self.loop.after(delay + 1000 * stays_dead, self._start_worker, process.name, process.fingerprint)
        elif isinstance(process, SimulatedShard):
            self.loop.after(delay, self._start_shard, process.index)
        elif isinstance(process, SimulatedAggregator) and process is not self.aggregator:
            return  # It had been replaced.
        elif isinstance(process, SimulatedOptimizer) and process is not self.optimizer:
            return  # It belonged to a replaced aggregator.
        elif self.scenario.tiers == 2:
            for each in (self.optimizer, self.aggregator):
                if each is not None:
                    each.alive = False
                    self._cut_links_of(each)
            self.loop.after(delay, self.start_aggregator)
        elif isinstance(process, SimulatedAggregator):
            self.loop.after(delay, self.start_aggregator)
        else:
            self.loop.after(delay, self._start_optimizer)

    def _cut_links_of(self, process: Process) -> None:
        for link in self.links:
            if process in link.ends:
                link.cut()
        self.links = [link for link in self.links if link.up]

    # ---- events ----

    def committed(self, order: UpdatePart, count: int) -> None:
        """Record a committed step, in whose losses some tokens count."""
        job = self.jobs[order.job]
        counted = job.count(range(job.plan.micro_batches))
        require(
            count == counted or not self.counts_are_true,
            f"{count} tokens count in step {order.step}, expected {counted}",
        )
        self.checks.committed(order)
        self.contention.committed(order)
        self.commits += 1
        self.moved()
        self.faults.advance(self.commits)

    def noted(self, note: Note) -> None:
        """Check a report of the aggregator."""
        self.checks.noted(note)
        self.faults.check_named(note.text)
        if note.kind in ("evaluation", "checkpoint", "state"):
            self.moved()

    def moved(self) -> None:
        """Note progress, or the start of something that delays it."""
        self._progress_seconds = self.loop.now


def described(what: object) -> str:
    """Format an input or effect on one line, with the names of messages."""
    if isinstance(what, Message):
        return f"{type(what).__name__}({' '.join(str(what).split())})"
    if is_dataclass(what):
        values = (f"{each.name}={described(getattr(what, each.name))}" for each in fields(what))
        return f"{type(what).__name__}({', '.join(values)})"
    return repr(what)
