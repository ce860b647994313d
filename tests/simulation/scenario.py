"""Scenarios: jobs, speeds and number of faults that follow from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from services.protocol.plan import JobPlan
from tests.simulation.job_model import SimulatedJob

CHUNKS_IN_FLIGHT = 6
"""Chunks in flight at which a data stream makes its writer wait."""

LIAR = "liar"
"""Name of the lying worker."""
IMPOSTOR = "impostor"
"""Worker that says something else of a job than all others, and computes like them."""
OVERSTATER = "overstater"
"""Name of the worker that describes a layout of another size."""

STEPS = 120
"""Steps of a seed's first job."""

ROW_SKEW = 10
"""Largest factor on the delays of links between the workers of a row, over which many messages go one after another."""

SHARDED = 0.5
"""Share of the usual seeds with 2 tiers whose aggregator has shards."""

PAUSED_JOBS = 0.3
"""Share of the jobs of usual seeds that a user pauses."""
MOST_PAUSE_SECONDS = 40.0
"""Longest time until that user resumes the job."""

SPLIT_JOBS = 0.3
"""Share of the jobs of usual seeds that have a pipeline."""

MOST_SECONDS = 40_000.0
"""Limit of a run's virtual time."""


@dataclass
class Scenario:
    """One simulated run.

    Attributes:
        tiers: 2 or 3.
        shards: number of the aggregator's shards; 0 for none. They are for 2 tiers.
        jobs: Jobs in order of submission.
        workers: number of workers.
        control_seconds, data_seconds: typical delays of messages.
        skews: factors on the delays, drawn per stream.
        compute_seconds: typical time in which the fastest worker computes a micro-batch.
        optimizer_seconds: longest time of an optimizer's task.
        restart_seconds: longest time until a dead process restarts.
        repeat_control, repeat_chunks: probability that a message arrives twice.
        copies_messages: whether messages are serialised, so that no two processes share one.
        faults: number of faults.
        fault_steps: committed steps of all jobs within which they happen; 0 for nine tenths of the first job's.
        odd_worker: whether a worker with another fingerprint tries to join.
        liar: whether a worker that sometimes lies takes part.
        overstates: message in which a further worker gives a layout of another size than the job's; empty for none.
        upgrade_seconds: time from which workers are replaced by others of new code, or None.
        fault_kinds: kinds of faults that may happen; empty means all.
        impostor: what the first worker that answers says something else of, `fingerprint` or `layout`; empty for none.
        impostor_leaves: whether it leaves for good before its first COMMIT; else a person overrules it.
        voices: whether each worker's certificate is bound to its name.
        checks: times from which a person asks for a check of meshes and links, until there are idle workers.
        max_running_jobs: largest number of jobs that run at once.
        compute_deaths: probability that a compute process dies of a lease or a build, as long as there are faults.
    """

    tiers: int
    jobs: list[SimulatedJob]
    workers: int
    control_seconds: float
    data_seconds: float
    skews: tuple[float, ...]
    optimizer_seconds: float
    restart_seconds: float
    repeat_control: float
    repeat_chunks: float
    copies_messages: bool
    faults: int
    odd_worker: bool
    liar: bool = False
    impostor: str = ""
    impostor_leaves: bool = False
    voices: bool = False
    overstates: Literal["", "Ready", "Description"] = ""
    upgrade_seconds: float | None = None
    fault_kinds: tuple[str, ...] = ()
    checks: tuple[float, ...] = ()
    max_running_jobs: int = 8
    shards: int = 0
    fault_steps: int = 0
    compute_seconds: float = 0.01
    compute_deaths: float = 0.01

    @property
    def step_seconds(self) -> float:
        """Upper bound of a step's average time. Every message is late, and many chunks need several windows."""
        messages = (4 + 8 * (self.shards > 0)) * (self.control_seconds + self.data_seconds) * max(self.skews)
        goes = 1 + max(job.chunks for job in self.jobs) / CHUNKS_IN_FLIGHT
        checks = 1 + max(job.plan.verify_fraction for job in self.jobs)  # A liar's step is repeated.
        return (
            1.5 * checks * goes * (messages + 3 * self.optimizer_seconds + 50 * self.compute_seconds)
            + self._passes_seconds
        )

    @property
    def _passes_seconds(self) -> float:
        """Upper bound of the time of a step's passes in rows, most of which wait for an array."""
        hops = max(
            (2 * job.pipeline.ranges * (job.plan.micro_batches + 1) for job in self.jobs if job.pipeline),
            default=0,
        )
        return hops * (0.1 + 4 * self.data_seconds * min(max(self.skews), ROW_SKEW))

    @property
    def workers_needed(self) -> int:
        """Number of workers that must restart soon after a death. Otherwise a job would wait too long."""
        fails = any(
            job.poisoned_at is not None or job.deadly_at is not None for job in self.jobs
        )  # Two workers must see a poisoned micro-batch.
        return self.workers if fails else max(job.fewest_workers for job in self.jobs)

    @classmethod
    def of(cls, seed: int, rng: random.Random) -> Scenario:
        """Return the scenario of a seed."""
        if seed % 10 == 7:
            return cls.lying(seed)
        wide = rng.random() < 0.06  # more chunks than a window holds
        chunks = rng.randint(17, 24) if wide else rng.choice((1, 1, 1, 2, 2, 3, 4, 5))
        workers = rng.randint(1, 2) if wide else rng.choice((1, 2, 2, 3, 3, 4, 5))
        jobs = [make_job(rng, 0, STEPS, chunks, 3 if wide else 9, workers)]
        for number in range(1, rng.choice((1, 1, 2, 3))):
            job = make_job(rng, number, rng.randint(2, 20), rng.randint(1, 3), 4, workers, may_fail=True)
            job.submitted_seconds = rng.random() * 60
            if rng.random() < 0.5:
                job.cancelled_seconds = job.submitted_seconds + rng.random() * 60
            elif rng.random() < 0.1:
                job.full_disk_at = rng.choice((0, job.plan.steps))
            jobs.append(job)
        checked = random.Random(seed)  # A generator of its own, so that it changes nothing else of a seed.
        for job in jobs:
            job.plan = replace(job.plan, verify_fraction=checked.choice((0.0, 0.0, 0.2, 1.0)))
        checks = tuple(60 * checked.random() for _ in range(checked.choice((0, 0, 3))))
        if checks:  # they can begin only where no job runs
            jobs[0].submitted_seconds = 30 * checked.random()
        split = random.Random(f"pipelines of {seed}")  # another one of its own
        for job in jobs:
            if split.random() < SPLIT_JOBS:
                job.split(split, workers)
        pauses = random.Random(f"pauses of {seed}")  # another one of its own
        for job in jobs:
            if pauses.random() < PAUSED_JOBS:
                begins_seconds = job.submitted_seconds + 60 * pauses.random()
                job.pauses = ((begins_seconds, MOST_PAUSE_SECONDS * pauses.random()),)
            job.plan = replace(job.plan, priority=pauses.choice((-1, 0, 0, 1)))
        slow = rng.choice((0.002, 0.005, 0.02))
        usual = cls(
            tiers=rng.choice((2, 3, 3)),
            jobs=jobs,
            workers=workers,
            control_seconds=rng.choice((0.002, slow)),
            data_seconds=slow,
            skews=rng.choice(((1,), (1, 1, 10), (1, 1, 100))),
            optimizer_seconds=rng.choice((0.004, 0.004, 0.1, 1.0)),
            restart_seconds=rng.choice((0.5, 20.0)),
            repeat_control=rng.choice((0.0, 0.01)),
            repeat_chunks=rng.choice((0.0, 0.02)),
            copies_messages=seed % 16 == 0,
            faults=rng.choice((0, 4, 8, 12, 20)),
            odd_worker=len(jobs) == 1 and rng.random() < 0.1,
            checks=checks,
        )
        return usual.with_shards(seed) if split.random() < SHARDED else usual

    def with_shards(self, seed: int) -> Scenario:
        """Return this scenario with shards, if it has 2 tiers."""
        count = random.Random(f"shards of {seed}").choice((1, 2, 2, 3))
        return replace(self, shards=count) if self.tiers == 2 else self

    @classmethod
    def hostile(cls, seed: int) -> Scenario:
        """Return a short scenario with most kinds of faults."""
        rng = random.Random(seed)
        chunks = rng.choice((1, 2, 3, 5))
        workers = rng.choice((2, 3))
        jobs = [make_job(rng, 0, 60, chunks, 7, workers, evaluate_every=rng.choice((1, 3)))]
        jobs[0].plan = replace(jobs[0].plan, verify_fraction=(0.0, 0.0, 0.5)[seed % 3])
        if rng.random() < 0.3:
            jobs.append(make_job(rng, 1, 10, chunks, 3, workers, may_fail=True))
        return cls(
            tiers=3,
            jobs=jobs,
            workers=workers,
            control_seconds=0.01,
            data_seconds=0.01,
            skews=(1, 30),
            optimizer_seconds=rng.choice((0.01, 2.0, 6.0)),
            restart_seconds=0.5,
            repeat_control=0.05,
            repeat_chunks=0.05,
            copies_messages=False,
            faults=40,
            odd_worker=False,
        )

    @classmethod
    def lying(cls, seed: int) -> Scenario:
        """Return a scenario with a lying worker. Its faults never remove the worker between a lie and its check."""
        rng = random.Random(seed)
        tiers = rng.choice((2, 3))
        workers = rng.choice((1, 2, 3))
        job = make_job(rng, 0, 60, rng.choice((1, 2, 3)), 7, workers)
        on_faulty = rng.choice(("go_back", "go_on"))
        job.plan = replace(job.plan, verify_fraction=1.0, on_faulty=on_faulty)
        return cls(
            tiers=tiers,
            jobs=[job],
            workers=workers,
            control_seconds=0.01,
            data_seconds=0.01,
            skews=(1, 30),
            optimizer_seconds=rng.choice((0.01, 2.0)),
            restart_seconds=0.5,
            repeat_control=0.05,
            repeat_chunks=0.05,
            copies_messages=False,
            faults=rng.choice((0, 4, 8)),
            odd_worker=False,
            liar=True,
            fault_kinds=("aggregator", "optimizer", "optimizer link") if tiers == 3 else ("aggregator",),
        )

    @classmethod
    def claimed_first(cls, seed: int) -> Scenario:
        """Return a scenario in which an impostor answers first, in 2 and 3 tiers, and stays or leaves."""
        usual = cls.hostile(seed)
        draw = random.Random(f"impostor of {seed}")
        splits = seed % 4 == 3
        leaves = not splits and draw.random() < 0.5
        for job in usual.jobs:
            if splits:
                job.split(draw, usual.workers)
            if leaves:  # it does so when it gets a lease, for which it must be enough
                job.plan = replace(job.plan, min_workers=1)
        return replace(
            usual,
            jobs=usual.jobs[:1],
            tiers=draw.choice((2, 3)),
            faults=draw.choice((0, 4, 12)),
            impostor=draw.choice(("fingerprint", "layout")),
            impostor_leaves=leaves,
            voices=draw.random() < 0.7,
            fault_kinds=("link", "worker", "aggregator", "optimizer", "optimizer link", "freeze"),
        )

    @classmethod
    def deadly(cls, seed: int) -> Scenario:
        """Return a scenario whose first job kills compute processes in one step; the second job is sound."""
        rng = random.Random(seed)
        usual = cls.hostile(seed)
        first = make_job(rng, 0, 20, 2, 5, usual.workers)
        first.deadly_at = rng.randrange(20)
        first.plan = replace(first.plan, min_workers=1)  # it may exclude one worker before it kills another's
        second = make_job(rng, 1, 5, 1, 3, usual.workers)
        return replace(usual, jobs=[first, second], faults=seed % 3 * 4)

    @classmethod
    def upgraded(cls, seed: int) -> Scenario:
        """Return a scenario in which all workers are replaced by others of new code while a job runs."""
        usual = cls.hostile(seed)
        return replace(
            usual,
            jobs=usual.jobs[:1],
            upgrade_seconds=10.0 + seed % 7 * 5,
            faults=seed % 3 * 6,
            fault_kinds=("link", "worker", "aggregator", "optimizer", "optimizer link", "freeze"),
        )

    @classmethod
    def continued(cls, seed: int) -> Scenario:
        """Return a scenario whose second job goes on where the first one has ended; a third is a new job."""
        usual = (cls.hostile, cls.lying, cls.upgraded)[seed % 3](seed)
        rng = random.Random(seed)
        first = replace(usual.jobs[0], plan=replace(usual.jobs[0].plan, steps=rng.choice((1, 5, 20))))
        steps = first.plan.steps + rng.choice((1, 10, 30))
        second = replace(first, number=1, plan=replace(first.plan, steps=steps), earlier=first)
        third = make_job(rng, 2, 3, first.chunks, 3, usual.workers)
        third.plan = replace(third.plan, verify_fraction=first.plan.verify_fraction)
        return replace(
            usual, jobs=[first, second, third], tiers=2 + seed // 3 % 2, faults=min(usual.faults, 12)
        )

    @classmethod
    def with_checks(cls, seed: int) -> Scenario:
        """Return a scenario with checks of meshes and links before, between and beside short jobs, in 2 and 3 tiers."""
        rng = random.Random(seed)
        usual = cls.hostile(seed)
        jobs = []
        for number in range(4):
            job = make_job(rng, number, rng.randint(1, 12), rng.choice((1, 2, 3)), 5, usual.workers)
            job.submitted_seconds = 60 * number * rng.random()
            job.cancelled_seconds = job.submitted_seconds + 20 * rng.random() if rng.random() < 0.2 else None
            jobs.append(job)
        checks = tuple(180 * rng.random() for _ in range(12))
        return replace(
            usual, jobs=jobs, tiers=rng.choice((2, 3)), faults=rng.choice((0, 6, 12)), checks=checks
        )

    @classmethod
    def split(cls, seed: int) -> Scenario:
        """Return a short scenario whose jobs all have pipelines, with most kinds of faults."""
        draw = random.Random(f"pipelines of {seed}")
        usual = cls.hostile(seed)
        usual = replace(
            usual,
            tiers=draw.choice((2, 3)),
            workers=draw.choice((1, 2, 3, 4, 6)),
            faults=draw.choice((0, 8, 30)),
        )
        for job in usual.jobs:
            job.plan = replace(job.plan, min_workers=min(job.plan.min_workers, usual.workers))
            job.split(draw, usual.workers)
        return usual

    @classmethod
    def sharded(cls, seed: int) -> Scenario:
        """Return a short scenario with shards whose jobs all have pipelines, with most kinds of faults."""
        return replace(cls.split(seed), tiers=2).with_shards(seed)

    @classmethod
    def hanging(cls, seed: int) -> Scenario:
        """Return a scenario with pipelines and spares, whose only faults are devices that hang."""
        usual = cls.split(seed)
        return replace(usual, workers=usual.workers + 3, faults=6, fault_kinds=("hang",))

    @classmethod
    def parted(cls, seed: int) -> Scenario:
        """Return a scenario with a worker for each stage of one job, of which no one reaches another for long."""
        draw = random.Random(f"pipelines of {seed}")
        workers = draw.choice((2, 3))
        usual = cls.hostile(seed)
        [job] = jobs = usual.jobs[:1]
        job.plan = replace(job.plan, min_workers=1)
        job.pipeline = None
        while job.pipeline is None or job.pipeline.stages != workers:
            job.split(draw, workers)
        if seed % 2:
            job.pipeline = replace(job.pipeline, most_stages=1)
        return replace(usual, jobs=jobs, workers=workers, faults=1, fault_kinds=("parted long",))

    @classmethod
    def lying_in_rows(cls, seed: int) -> Scenario:
        """Return a scenario with a lying worker that has stages of a job. One row alone checks itself."""
        draw = random.Random(f"pipelines of {seed}")
        usual = cls.lying(seed)
        workers = draw.choice((2, 3, 5))
        for job in usual.jobs:
            job.split(draw, workers)
        return replace(usual, workers=workers)

    @classmethod
    def lying_sharded(cls, seed: int) -> Scenario:
        """Return a scenario with shards and a lying worker that has stages of a job."""
        return replace(cls.lying_in_rows(seed), tiers=2, fault_kinds=("aggregator", "shard")).with_shards(
            seed
        )

    @classmethod
    def with_insider(cls, seed: int, *, rows: bool = True) -> Scenario:
        """Return a short scenario without faults, whose workers finish its job without a further one, an insider.

        Args:
            seed: the seed.
            rows: whether the job may have a pipeline.
        """
        draw = random.Random(f"insider of {seed}")
        workers = draw.choice((2, 2, 3))
        job = make_job(draw, 0, draw.randint(4, 12), draw.choice((1, 2, 3)), 5, workers)
        job.plan = replace(job.plan, min_workers=1, verify_fraction=draw.choice((0.0, 0.0, 0.0, 1.0)))
        if draw.random() < 0.5 and rows:
            job.split(draw, workers)
            workers += 1  # a spare, which can replace the insider
        usual = cls.hostile(seed)
        return replace(
            usual, jobs=[job], workers=workers, tiers=draw.choice((2, 3)), optimizer_seconds=0.01, skews=(1, 10),
            repeat_control=0.0, repeat_chunks=0.0, faults=0, voices=True,
        )  # fmt: skip

    @classmethod
    def restored(cls, seed: int) -> Scenario:
        """Return a scenario in which the queue is put back from earlier backups, in 2 and 3 tiers."""
        rng = random.Random(seed)
        usual = cls.hostile(seed)
        jobs = usual.jobs[:1]
        for number in (1, 2):
            job = make_job(rng, number, 10, rng.choice((1, 2)), 3, usual.workers)
            job.submitted_seconds = rng.random() * 60
            job.cancelled_seconds = job.submitted_seconds + 30 if rng.random() < 0.2 else None
            jobs.append(job)
        kinds = ("restore", "restore", "aggregator", "link", "worker", "freeze")
        tiers = 2 + rng.randrange(2)
        return replace(
            usual,
            tiers=tiers,
            jobs=jobs,
            faults=12,
            fault_kinds=(*kinds, "optimizer", "optimizer link") if tiers == 3 else kinds,
        )


def make_job(
    rng: random.Random,
    number: int,
    steps: int,
    chunks: int,
    most_micro_batches: int,
    workers: int,
    *,
    evaluate_every: int | None = None,
    may_fail: bool = False,
) -> SimulatedJob:
    """Draw a job. With `may_fail` it sometimes has a non-finite gradient or a micro-batch that fails everywhere."""
    by_the_clock = rng.choice((0.0, 0.0, 2.0, 60.0))
    plan = JobPlan(
        steps=steps,
        micro_batches=rng.randint(1, most_micro_batches),
        evaluate_every=rng.choice((0, 7, 20, 50)) if evaluate_every is None else evaluate_every,
        checkpoint_every=rng.choice((3, 5, 8, 13, 0 if by_the_clock else 3)),
        checkpoint_seconds=by_the_clock,
        min_workers=rng.choice((1, 1, rng.randint(1, workers))),
        on_non_finite="stop" if may_fail and rng.random() < 0.4 else "skip",
    )
    return SimulatedJob(
        number,
        plan,
        chunks,
        max(1, rng.randint(0, 9)),
        submitted_seconds=0.0,
        poisoned_at=rng.randrange(steps) if may_fail and rng.random() < 0.15 else None,
        keep_last=rng.choice((0, 1, 3)),
    )
