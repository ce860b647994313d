"""scheduler: milliseconds of a decision which of 200 workers serves which of 100 jobs.

Clusters differ in how many of the jobs run, what jobs need, and which workers they fit. The figure is the slowest
cluster's median.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from aggregator.core.scheduling.scheduler import decide
from aggregator.core.scheduling.views import JobView, Settings, State, WorkerView
from benchmarks.harness.report import median, milliseconds, report

NAME = "scheduler"
WORKERS = 200
JOBS = 100
CLUSTERS = 40
REPEATS = 15
BOUND_MILLISECONDS = 20.0
SETTINGS = Settings(max_running_jobs=JOBS, comeback_seconds=120.0)


def run() -> bool:
    """Measure and report `scheduler_decision_milliseconds`."""
    times = []
    for seed in range(CLUSTERS):
        jobs, workers = make_cluster(seed)
        taken = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            decide(jobs, workers, SETTINGS)
            taken.append(time.perf_counter() - started)
        times.append(taken)
    slowest = max(times, key=median)
    return report(
        f"{NAME}_decision_milliseconds",
        1e3 * median(slowest),
        BOUND_MILLISECONDS,
        f"{WORKERS} workers, {JOBS} jobs, {CLUSTERS} clusters; the slowest: {milliseconds(slowest)}",
        f"all of them: {milliseconds([median(each) for each in times])}",
        decimals=2,
    )


def make_cluster(
    seed: int, workers: int = WORKERS, jobs: int = JOBS
) -> tuple[list[JobView], list[WorkerView]]:
    """Return jobs, some of which run, and workers, some of which are with them."""
    chance = random.Random(seed)
    needs = chance.choice([2, 8, 40])
    refused = chance.choice([0.0, 0.05, 0.5])
    queue = [
        JobView(
            id=f"1126-1200{number:02}-{number:08x}",
            order=number,
            priority=chance.choice([0, 0, 0, 1, 2]),
            min_workers=chance.randint(1, needs),
            max_workers=chance.choice([needs, 64]),
            row_workers=chance.choice([1, 1, 4]),
            preemptible=chance.random() < 0.8,
            remaining_seconds=chance.choice([None, 600.0 * chance.random(), 1e5]),
        )
        for number in range(jobs)
    ]
    present = [
        WorkerView(
            id=f"loudbox{number}",
            unfit={job.id: "its mesh is [1, 4]" for job in queue if chance.random() < refused},
            move_seconds=20.0,
        )
        for number in range(workers)
    ]
    running = decide(chance.sample(queue, jobs // 2), present, SETTINGS)
    states = dict.fromkeys(running.starts, State.RUNNING)
    return (
        [replace(job, state=states.get(job.id, State.QUEUED)) for job in queue],
        [replace(each, job=running.assignment[each.id]) for each in present],
    )
