"""several_jobs: what jobs lose by running at once, and how soon one of a higher priority makes its first step.

A real cluster with two tiers and 4 workers, whose micro-batches take a given time (harness/several_jobs_cluster.py).

* Makespan: from the submission of two equal jobs to the end of both, over the time that they take one after the other.
  First each job may have 2 workers, so that the other 2 would be idle. Then each may have all 4, so that nothing can be
  gained: what it takes more is the price of sharing.
* Preemption: a job that needs all workers is submitted while another one computes. The figure is the time from its
  submission to its first pass, beyond that of the same job on idle workers, in steps of the job that makes room. So
  building and weights don't count. It is the largest of some preemptions. The steps of the job that makes room must
  follow each other without a gap and without a repetition: it loses no COMMIT.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from benchmarks.harness.report import median, milliseconds, report
from benchmarks.harness.several_jobs_cluster import SeveralJobsCluster
from services.errors import Failed

NAME = "several_jobs"
WORKERS = 4
MICRO_BATCHES = 12
MICRO_BATCH_SECONDS = 0.2
STEP_SECONDS = MICRO_BATCHES * MICRO_BATCH_SECONDS / WORKERS
STEPS = 16
HALF_BOUND, ALL_BOUND, PREEMPTION_BOUND = 0.6, 1.05, 2.0
PREEMPTIONS = 5
SHORT_STEPS = 2
STEADY_STEPS = 3
LIMIT_SECONDS = 240.0
SEED = 5


@dataclass(frozen=True)
class Start:
    """When a job came to its first step, in Unix time.

    Attributes:
        submitted: its submission.
        left: the departure of the last worker from the job that makes room; the submission if there is none.
        built: the moment when the last worker has built it.
        begun: the start of its first pass, for which the worker has its initial weights.
        committed: the COMMIT of its first step.
    """

    submitted: float
    left: float
    built: float
    begun: float
    committed: float

    @property
    def seconds(self) -> float:
        """Time from the submission to the first pass."""
        return self.begun - self.submitted


def run() -> bool:
    """Measure makespans and preemptions."""
    with SeveralJobsCluster(
        NAME,
        workers=WORKERS,
        micro_batches=MICRO_BATCHES,
        micro_batch_seconds=MICRO_BATCH_SECONDS,
        limit_seconds=LIMIT_SECONDS,
    ) as cluster:
        kept = [
            _report_makespan(cluster, f"{NAME}_of_half_the_workers", HALF_BOUND, WORKERS // 2),
            _report_makespan(cluster, f"{NAME}_of_all_workers", ALL_BOUND, WORKERS),
            _report_preemptions(cluster),
        ]
    return all(kept)


def _report_makespan(cluster: SeveralJobsCluster, name: str, bound: float, max_workers: int) -> bool:
    settings = (f"training_config.max_steps={STEPS}", f"training_config.max_workers={max_workers}")
    alone = []
    for number in range(2):
        ended = cluster.until_ended(cluster.submit(f"alone-{number}", *settings))
        alone.append(ended.ended_seconds - ended.submitted_seconds)
    submitted = [cluster.submit(f"beside-{number}", *settings) for number in range(2)]
    both = [cluster.until_ended(job) for job in submitted]
    makespan = max(each.ended_seconds for each in both) - both[0].submitted_seconds
    beside = ", ".join(f"{each.ended_seconds - each.submitted_seconds:.1f}" for each in both)
    return report(
        name,
        makespan / sum(alone),
        bound,
        f"{WORKERS} workers, at most {max_workers} for each job, {STEPS} steps of {MICRO_BATCHES} micro-batches of "
        f"{MICRO_BATCH_SECONDS:g} s",
        f"at once {makespan:.1f} s, the jobs {beside} s; one after the other "
        f"{' + '.join(f'{each:.1f}' for each in alone)} s",
    )


def _report_preemptions(cluster: SeveralJobsCluster) -> bool:
    idle = [_start(cluster) for _ in range(PREEMPTIONS)]
    running = cluster.submit("makes-room", "training_config.max_steps=1000000")
    cluster.until_step(running, 1)
    draw = random.Random(SEED)
    preempting = []
    for _ in range(PREEMPTIONS):
        step = cluster.until_more_steps_of(running, STEADY_STEPS)
        cluster.until_moment(step.seconds + draw.uniform(0.0, STEP_SECONDS), "a moment of a step")
        preempting.append(_start(cluster, makes_room=running))
    cluster.until_more_steps_of(running, STEADY_STEPS)
    commits = [each for each in cluster.events(running) if each.committed]
    numbers = [each.committed for each in commits]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Failed(f"job {running} made room, and committed the steps {numbers}, expected each one once")
    step_seconds = median([after.seconds - before.seconds for before, after in itertools.pairwise(commits)])
    least = median([each.seconds for each in idle])
    delays = [(each.seconds - least) / step_seconds for each in preempting]
    return report(
        f"{NAME}_preemption_steps",
        max(delays),
        PREEMPTION_BOUND,
        f"median {median(delays):.2f} of {len(delays)}; a step takes {1e3 * step_seconds:.0f} ms",
        f"on idle workers: {_describe(idle)}",
        f"on those of another job: {_describe(preempting)}",
        f"each: {', '.join(f'{each:.2f}' for each in delays)}; no COMMIT of {len(numbers)} was lost",
    )


def _start(cluster: SeveralJobsCluster, *, makes_room: str = "") -> Start:
    """Run a job that needs all workers, beside one that makes room for it or on idle workers."""
    settings = (f"max_steps={SHORT_STEPS}", f"min_workers={WORKERS}", "priority=1")
    job = cluster.submit("comes-first", *(f"training_config.{each}" for each in settings))
    submitted = cluster.until_ended(job).submitted_seconds
    events = cluster.events(job)
    left = [
        each.seconds
        for each in cluster.events(makes_room)
        if each.seconds >= submitted and " leaves: " in each.text
    ]
    return Start(
        submitted,
        left=max(left) if makes_room else submitted,
        built=[each.seconds for each in events if each.text.endswith(" is ready")][WORKERS - 1],
        begun=cluster.first_pass(submitted).start,
        committed=next(each.seconds for each in events if each.committed),
    )


def _describe(starts: list[Start]) -> str:
    """Return the medians of the parts of some starts."""
    room, building, weights, step = (
        1e3 * median(part)
        for part in zip(
            *(
                (s.left - s.submitted, s.built - s.left, s.begun - s.built, s.committed - s.begun)
                for s in starts
            ),
            strict=True,
        )
    )
    return (
        f"first pass after {milliseconds([each.seconds for each in starts])}: {room:.0f} ms until the workers have "
        f"left, building {building:.0f} ms, weights {weights:.0f} ms; first step {step:.0f} ms"
    )
