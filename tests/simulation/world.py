"""A whole virtual cluster: processes, disk, faults, and what must hold of every run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from aggregator import events as aggregator_events
from aggregator.core import Record
from aggregator.events import Note, SaveJob
from aggregator.failures import MOST_FAILURES
from optimizer import events as optimizer_events
from optimizer.core import is_void
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, Job, JobState
from services.checkpoints.prune import surplus_steps
from services.ladder import STANDARD
from tests.simulation import history
from tests.simulation.aggregator_shell import AggregatorShell
from tests.simulation.links import Link
from tests.simulation.network import Loop
from tests.simulation.optimizer_shell import OptimizerShell
from tests.simulation.process import Process
from tests.simulation.scenario import LIAR, Scenario
from tests.simulation.truth import PARAMETER, SICK, SimulationFailed, must
from tests.simulation.worker_shell import WorkerShell

Core = TypeVar("Core")

PATIENCE_SECONDS = 300.0
"""Whatever goes wrong, something gets done at least that often (virtual seconds)."""
MOST_SECONDS = 40_000.0
"""Every run is over by then."""
RECOVERY_SECONDS = 120.0
"""How long the last fault may cost, once it is over, beside the steps that are made again."""
FREEZE_SECONDS = (1.0, 10.0, 25.0, 60.0)
HANG_SECONDS = 1500.0
"""How long a hanging device hangs: longer than the aggregator waits for a lease."""


@dataclass
class Disk:
    """What survives the death of processes.

    Attributes:
        epoch: of the aggregator that started last.
        obeyed_epoch: the highest that an optimizer of its own process has obeyed.
    """

    epoch: int = 0
    obeyed_epoch: int = 0
    jobs: dict[str, SaveJob] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, list[tuple[pb.CheckpointWritten, tuple[int, ...]]]] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    unfinished: int = 0

    def save(self, effect: SaveJob) -> None:
        """Put a job on disk."""
        self.jobs[effect.job.id] = effect
        self.unfinished = sum(each.job.state in (QUEUED, RUNNING) for each in self.jobs.values())

    def records(self) -> list[Record]:
        """All jobs, oldest first, as a fresh process reads them."""
        return [
            Record(_copy(each.job), each.spec_json, self.plans[name], dict(each.fingerprint))
            for name, each in self.jobs.items()
        ]

    def write_checkpoint(
        self, written: pb.CheckpointWritten, weights: tuple[int, ...], keep_last: int
    ) -> None:
        """Put a checkpoint on disk; it takes the place of one of the same step, and of those that need not stay."""
        kept = [each for each in self.checkpoints.get(written.job, []) if each[0].step != written.step]
        held = sorted([*kept, (written, weights)], key=lambda each: each[0].step)
        gone = surplus_steps([each[0].step for each in held], written.step, keep_last=keep_last, keep_every=0)
        self.checkpoints[written.job] = [each for each in held if each[0].step not in gone]

    def newest_checkpoint(
        self, job: str, void: Iterable[pb.Void] = ()
    ) -> tuple[pb.CheckpointWritten, tuple[int, ...]] | None:
        """The checkpoint of the highest step, of those that count."""
        held = [each for each in self.checkpoints.get(job, []) if not is_void(each[0], void)]
        return max(held, key=lambda each: each[0].step, default=None)


class World:
    """One run of a seed.

    Args:
        seed: decides everything.
        tracing: print what happens.
        make_core: builds cores (so that a test can record or break them).

    Attributes:
        injected: what went wrong by intent, and how often.
    """

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
        self.workers: dict[str, WorkerShell] = {}
        self.aggregator: AggregatorShell | None = None
        self.optimizer: OptimizerShell | None = None
        self.commits = 0
        self.lost_in_flight = 0
        self.faulty = True
        self.history = history.Checker()
        for job in self.scenario.jobs:
            self.history.add(history.Planned(job.id, job.plan.micro_batches, job.chunks))
        self._cancelled: set[str] = set()
        self._failed: dict[tuple[str, int, int, int], dict[str, set[int]]] = {}
        self._may_fail: set[str] = set()
        self._failures: Counter[str] = Counter()  # by worker: leases that it could not do
        self._hung: set[str] = set()
        self._lives = 0
        self._progress_seconds = 0.0
        self._patience_seconds = PATIENCE_SECONDS
        self._disturbed_until = 0.0
        planned = self.scenario.jobs[0].plan.steps
        self._faults_at = sorted(self.rng.randint(0, planned * 9 // 10) for _ in range(self.scenario.faults))

    # ---- the run ----

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            SimulationFailed: something that must hold did not.
        """
        for job in self.scenario.jobs:
            self.loop.at(job.submitted_seconds, self._submit, job.id)
            if job.cancelled_seconds is not None:
                self.loop.at(job.cancelled_seconds, self._cancel, job.id)
        self._start_optimizer()
        self._start_aggregator()
        names = [f"worker{number}" for number in range(self.scenario.workers)]
        for number, name in enumerate(names):
            self.loop.at(self.rng.random() * (5 if not number else 40), self._start_worker, name)
        if self.scenario.odd_worker:
            self.loop.at(60.0, self._start_worker, "odd", "another")
        if self.scenario.liar:
            self.loop.at(60.0, self._start_worker, LIAR)
        self.loop.at(10.0, self._watch)
        self._maybe_fault()
        while self.disk.unfinished or len(self.disk.jobs) < len(self.jobs):
            self.loop.step()
        self._check_end()

    def _watch(self) -> None:
        """Something must get done now and then."""
        idle = self.loop.now - self._progress_seconds
        if idle > self._patience_seconds:
            aggregator = self.aggregator
            waits = (
                aggregator.core.waits_for(self.loop.now)
                if aggregator and aggregator.alive
                else "no aggregator"
            )
            raise SimulationFailed(f"nothing got done for {idle:.0f} virtual seconds; waiting for {waits}")
        must(self.loop.now < MOST_SECONDS, f"not over after {MOST_SECONDS:.0f} virtual seconds")
        if self.faulty and not self._faults_at and self.loop.now > self._disturbed_until:
            self._end_faults()
        if not self.faulty:
            self.history.add(history.Ticked(self.loop.now / STANDARD.tick))
        self.loop.after(10.0, self._watch)

    def _end_faults(self) -> None:
        """From here on nothing goes wrong: bound the rest of the run."""
        if len(self.disk.jobs) < len(self.jobs):
            return
        self.faulty = False
        for process in (self.aggregator, self.optimizer, *self.workers.values()):
            if process is not None:
                process.doomed_after = None
        for worker in self.workers.values():
            worker.sick_leases = 0
        left = 0.0
        for job in self.jobs.values():
            if self.disk.jobs[job.id].job.state in (QUEUED, RUNNING):
                found = self.disk.newest_checkpoint(job.id)
                left += (job.plan.steps - (found[0].step if found else 0)) * (1 + job.plan.verify_fraction)
        bound = (RECOVERY_SECONDS + left * self.scenario.step_seconds) / STANDARD.tick
        self.history.add(history.FaultsEnded(self.loop.now / STANDARD.tick, bound))

    def _moved(self) -> None:
        self._progress_seconds = self.loop.now

    def trace(self, title: str, arrow: str, what: object) -> None:
        """Print a line of the trace."""
        if self.tracing:
            print(f"{self.loop.now:10.4f} {title:14} {arrow} {described(what)[:300]}")

    # ---- people ----

    def _submit(self, job: str) -> None:
        """Submit, again until it is acknowledged."""
        if job in self.disk.jobs:
            return
        if self.aggregator is not None and self.aggregator.running:
            plan = self.jobs[job].plan
            submitted = aggregator_events.Submitted(Job(id=job, name=job), job, plan)
            self.aggregator.feed(submitted)
        self.loop.after(1.0, self._submit, job)

    def _cancel(self, job: str) -> None:
        self._cancelled.add(job)
        saved = self.disk.jobs.get(job)
        if saved is not None and saved.job.state not in (QUEUED, RUNNING):
            return
        if self.aggregator is not None and self.aggregator.running:
            self.aggregator.feed(aggregator_events.CancelAsked(job))
        self.loop.after(1.0, self._cancel, job)

    # ---- processes ----

    def _start_aggregator(self) -> None:
        self.disk.epoch += 1
        if self.scenario.tiers == 2:
            self._start_optimizer()
        self.aggregator = AggregatorShell(self, self.disk.epoch)

    def _start_optimizer(self) -> None:
        self._lives += 1
        self.optimizer = OptimizerShell(self, self._lives)

    def _start_worker(self, name: str, fingerprint: str = "same") -> None:
        self._lives += 1
        self.workers[name] = WorkerShell(self, name, self._lives, fingerprint)

    def died(self, process: Process) -> None:
        """A process is gone: its links break, and it is started again some time."""
        process.alive = False
        self.injected[f"{type(process).__name__.removesuffix('Shell').lower()} dies"] += 1
        self._cut_links_of(process)
        delay = 0.02 + self.rng.random() ** 4 * self.scenario.restart_seconds
        self._disturb(delay)
        if isinstance(process, WorkerShell):
            others = [each for each in self.workers.values() if each.alive and each.name != "odd"]
            stays_dead = len(others) >= self.scenario.workers_needed and self.rng.random() < 0.3
            self.loop.after(delay + 1000 * stays_dead, self._start_worker, process.name, process.fingerprint)
        elif isinstance(process, AggregatorShell) and process is not self.aggregator:
            return  # one that had been replaced
        elif isinstance(process, OptimizerShell) and process is not self.optimizer:
            return  # that one's
        elif self.scenario.tiers == 2:
            for each in (self.optimizer, self.aggregator):
                if each is not None:
                    each.alive = False
                    self._cut_links_of(each)
            self.loop.after(delay, self._start_aggregator)
        elif isinstance(process, AggregatorShell):
            self.loop.after(delay, self._start_aggregator)
        else:
            self.loop.after(delay, self._start_optimizer)

    def _cut_links_of(self, process: Process) -> None:
        for link in self.links:
            if process in link.ends:
                link.cut()
        self.links = [link for link in self.links if link.up]

    # ---- faults ----

    def _maybe_fault(self) -> None:
        while self._faults_at and self._faults_at[0] <= self.commits:
            self._faults_at.pop(0)
            seconds = self.rng.random() * 2 * max(1.0, self.scenario.optimizer_seconds)
            self._disturb(seconds)
            self.loop.after(seconds, self._fault)

    def _fault(self) -> None:
        self._moved()
        rng = self.rng
        self.links = [link for link in self.links if link.up]
        kinds = [
            "link",
            "link",
            "worker",
            "worker",
            "aggregator",
            "silence",
            "silence",
            "freeze",
            "clock",
            "sick",
        ]
        if self.scenario.tiers == 3:
            kinds += ["optimizer", "optimizer link"]
        kinds += ["usurper"] if rng.random() < 0.2 else []
        kinds += ["everything"] if rng.random() < 0.3 else []
        kinds += ["hang"] if rng.random() < 0.1 else []
        kind = rng.choice(self.scenario.fault_kinds or kinds)
        self.trace("fault", "!!", kind)
        alive = [each for each in self.workers.values() if each.alive]
        match kind:
            case "link" if self.links:
                self.injected["link cut"] += 1
                rng.choice(self.links).cut()
            case "optimizer link":
                self.injected["optimizer's link cut"] += 1
                for link in self.links:
                    if self.optimizer in link.ends:
                        link.cut()
            case "worker" if alive:
                self._doom(rng.choice(alive))
            case "aggregator":
                self._doom(self.aggregator)
            case "optimizer":
                self._doom(self.optimizer)
            case "everything":
                for process in [self.aggregator, self.optimizer, *alive]:
                    self._doom(process)
            case "silence" if distant := [link for link in self.links if not link.local]:
                seconds = self._silence_seconds()
                way = rng.choice(("up", "down", "both"))
                self.injected["link silent both ways" if way == "both" else "link silent one way"] += 1
                rng.choice(distant).hold(seconds, up=way != "down", down=way != "up")
            case "freeze":
                self._freeze(
                    rng.choice([self.aggregator, self.optimizer, *alive]), rng.choice(FREEZE_SECONDS)
                )
            case "clock":
                self._jump(rng.choice([self.aggregator, self.optimizer, *alive]))
            case "usurper" if self.aggregator is not None and self.aggregator.alive:
                self.injected["second aggregator"] += 1
                self.usurp(self.aggregator)
            case "sick" if alive:
                self._sicken(rng.choice(alive), len(alive))
            case "hang" if healthy := [each for each in alive if each.name not in self._hung]:
                self.injected["device hangs"] += 1
                worker = rng.choice(healthy)
                worker.hang_seconds = HANG_SECONDS
                # A second one would begin when the first is over, long after all faults.
                self._hung.add(worker.name)
                self._disturb(HANG_SECONDS)
                self._patience_seconds = 2 * HANG_SECONDS + PATIENCE_SECONDS

    def usurp(self, former: AggregatorShell) -> None:
        """Another aggregator is started while one lives on, as far as it is let, or is frozen and comes back late."""
        if self.rng.random() < 0.5:
            self._freeze(former, self.rng.choice(FREEZE_SECONDS))
        self._disturb(60.0)
        self._start_aggregator()
        for link in self.links:
            if former in link.ends and self.optimizer not in link.ends:
                self.loop.after(self.rng.random() * 20, link.cut)
        self.loop.after(60.0, former.die)

    def _disturb(self, seconds: float) -> None:
        """What just went wrong goes on for so long."""
        self._disturbed_until = max(self._disturbed_until, self.loop.now + seconds)

    def _silence_seconds(self) -> float:
        """How long a link is silent; the longest silence is longer than any run, and somebody's to notice."""
        seconds = self.rng.choice((2.0, 10.0, 25.0, 60.0, 2 * MOST_SECONDS))
        self._disturb(min(seconds, 60.0))
        return seconds

    def _freeze(self, process: Process | None, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long: nobody is told, what is sent to it waits, its clock goes on."""
        if process is None or not process.running:
            return
        self.injected["process frozen"] += 1
        self._disturb(seconds)
        one_process = self.scenario.tiers == 2 and process in (self.aggregator, self.optimizer)
        for each in (self.aggregator, self.optimizer) if one_process else (process,):
            if each is not None and each.alive:
                each.freeze(seconds)
        for link in self.links:
            if process in link.ends:
                link.silent(self.loop.now + seconds)

    def _jump(self, process: Process | None) -> None:
        """A process finds its monotonic clock far ahead (its host was suspended), and the time of day anywhere."""
        if process is not None:
            self.injected["clock jumps"] += 1
            process.clock_ahead_seconds += self.rng.choice((3.0, 20.0, 700.0, 100_000.0))
        if isinstance(process, AggregatorShell):
            process.wall_clock_seconds += self.rng.uniform(-1e6, 1e6)

    def _sicken(self, worker: WorkerShell, alive: int) -> None:
        """Some of its next leases fail; so many that it is refused only if there are others."""
        worker.sick_leases = self.rng.randint(1, 5) if alive > 1 else max(0, 2 - worker.failed_in_a_row)

    def _doom(self, process: Process | None) -> None:
        """A process dies now, or soon, between two effects."""
        if process is not None and process.alive:
            if self.rng.random() < 0.5:
                process.die()
            else:
                process.doomed_after = self.rng.randint(0, 30)

    # ---- what must hold ----

    def committed(self, optimizer: OptimizerShell, effect: optimizer_events.Update) -> None:
        """An optimizer decided a step."""
        opened = optimizer.core.open_job
        assert opened is not None
        self.history.add(history.Committed(effect.job, opened.generation, effect.step))
        must(
            effect.applied or self.jobs[effect.job].plan.on_non_finite == "skip",
            f"{effect} of a job that is to stop",
        )
        self.commits += 1
        self._moved()
        self._maybe_fault()

    def is_running(self, job: str) -> bool:
        """Whether a job runs, by its record."""
        return self.disk.jobs[job].job.state == RUNNING

    def lease_failed(self, worker: WorkerShell, lease: pb.Lease) -> None:
        """A worker could not do a lease: for the third time, or as another one, that may fail the job.

        What it did in between may have been for nothing, by when the aggregator heard of it: then they are in a row.
        """
        self._failures[worker.name] += 1
        parts = set(range(lease.first, lease.first + max(1, lease.count)))
        before = self._failed.setdefault((lease.job, lease.generation, lease.step, lease.phase), {})
        by_others = set().union(*(failed for name, failed in before.items() if name != worker.name))
        if parts & by_others or self._failures[worker.name] >= MOST_FAILURES:
            self._may_fail.add(lease.job)
        before.setdefault(worker.name, set()).update(parts)

    def noted(self, note: Note) -> None:
        """The aggregator tells people something."""
        job = self.jobs[note.job.id]
        self._check_told(note.job)
        if note.kind == "step":
            culprit = job.culprit(note.job.step - 1)
            end = "" if culprit is None else f"micro-batch {culprit}, parameter {PARAMETER})"
            must(
                note.text.endswith(end) and ("skipped" in note.text) == bool(end),
                f"of a step is said: {note.text}",
            )
            self.history.add(history.Told(job.id, note.job.generation, note.job.step))
        if note.kind in ("evaluation", "checkpoint", "state"):
            self._moved()

    def _check_told(self, told: Job) -> None:
        job = self.jobs[told.id]
        if told.HasField("loss"):
            expected = job.step_loss(told.step - 1)
            must(told.loss == expected, f"loss {told.loss} after step {told.step}, expected {expected}")
        if told.HasField("validation_loss"):
            expected = job.validation_loss(told.validation_step)
            must(
                told.validation_loss == expected,
                f"validation loss {told.validation_loss}, expected {expected}",
            )

    def _check_end(self) -> None:
        for name, saved in self.disk.jobs.items():
            job, state = self.jobs[name], saved.job.state
            excluded = {each.worker for each in saved.job.excluded}
            must(excluded <= {LIAR}, f"{name}: {excluded} were found faulty")
            allowed = {SUCCEEDED}
            if name in self._cancelled:
                allowed.add(CANCELLED)
            why, detail = job.why_it_fails, saved.job.detail
            sick = SICK in detail and name in self._may_fail
            if job.full_disk_at is not None or sick or (why and why in detail):
                allowed.add(FAILED)
            if why:
                allowed.discard(SUCCEEDED)
            must(state in allowed, f"{name} is {JobState.Name(state)}: {detail}")
            found = self.disk.newest_checkpoint(name)
            if "on_non_finite" in detail:
                newest = found[0].step if found else 0
                must(
                    saved.job.checkpoint_step == newest,
                    f"{name}: told of another checkpoint than that of step {newest}",
                )
            if state != SUCCEEDED:
                continue
            assert found is not None
            must(found[0].step == job.plan.steps, f"{name}: last checkpoint is of step {found[0].step}")
            must(
                found[1] == job.weights[-1], f"{name}: its final weights are not those of an undisturbed run"
            )
            must(saved.job.model_sha256 == f"{hash(job.weights[-1]):x}", f"{name}: told of another model")
            if job.evaluation_batches:
                must(saved.job.validation_step == job.plan.steps, f"{name}: not evaluated at its end")


def described(what: object) -> str:
    """An input or effect on one line, messages with their names."""
    if isinstance(what, Message):
        return f"{type(what).__name__}({' '.join(str(what).split())})"
    if is_dataclass(what):
        values = (f"{each.name}={described(getattr(what, each.name))}" for each in fields(what))
        return f"{type(what).__name__}({', '.join(values)})"
    return repr(what)


def _copy(job: Job) -> Job:
    copy = Job()
    copy.CopyFrom(job)
    return copy
