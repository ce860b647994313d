"""Scenarios in which several jobs want the same few workers."""

from __future__ import annotations

import random
from dataclasses import replace

from services.protocol.plan import MOST_WORKERS
from tests.simulation.job_model import SimulatedJob
from tests.simulation.scenario import Scenario, make_job

SUBMISSION_SECONDS = 60.0
"""Time in which all jobs are submitted."""
CHANGE_SECONDS = 120.0
"""Time in which users pause jobs and change priorities."""
MOST_PAUSE_SECONDS = 30.0
SPLIT_JOBS = 0.35
"""Share of the jobs that have a pipeline."""
LIARS_IN = 8
"""One of so many seeds has a worker that lies."""
LIAR_COMES_SECONDS = 50.0
"""Time by which the jobs of such a seed are later, so that they run when the liar comes."""


def contended(seed: int) -> Scenario:
    """Return a short scenario in which several jobs want the same few workers."""
    draw = random.Random(f"contention of {seed}")
    workers = draw.choice((1, 2, 2, 3, 3, 4, 5, 6))
    jobs = [_draw_job(draw, number, workers) for number in range(draw.randint(2, 6))]
    usual = Scenario(
        tiers=draw.choice((2, 3)),
        jobs=jobs,
        workers=workers,
        control_seconds=0.01,
        data_seconds=0.01,
        skews=draw.choice(((1,), (1, 1, 10), (1, 1, 30))),
        optimizer_seconds=draw.choice((0.01, 0.01, 0.5)),
        restart_seconds=draw.choice((0.5, 10.0)),
        repeat_control=draw.choice((0.0, 0.05)),
        repeat_chunks=draw.choice((0.0, 0.05)),
        copies_messages=False,
        faults=draw.choice((0, 2, 4, 8)),
        odd_worker=False,
        max_running_jobs=draw.choice((1, 2, 3, 8, 8, 8)),
        fault_steps=sum(job.plan.steps for job in jobs) // 2,
        compute_seconds=draw.choice((0.01, 0.1)),
    )
    if seed % LIARS_IN == LIARS_IN - 1:
        return _with_liar(usual)
    return usual.with_shards(seed) if draw.random() < 0.4 else usual


def _draw_job(draw: random.Random, number: int, workers: int) -> SimulatedJob:
    steps = draw.choice((2, 4, 8, 20, 30))
    job = make_job(draw, number, steps, draw.choice((1, 1, 2, 3)), 6, workers)
    least = draw.randint(1, workers)
    job.plan = replace(
        job.plan,
        min_workers=least,
        max_workers=draw.choice((least, least + 1, workers, MOST_WORKERS)),
        preemptible=draw.random() < 0.7,
        priority=draw.choice((0, 0, 0, 1, 2)),
        verify_fraction=draw.choice((0.0, 0.0, 0.0, 0.5)),
    )
    job.submitted_seconds = SUBMISSION_SECONDS * draw.random() * (number > 0)
    if draw.random() < 0.1:
        job.cancelled_seconds = job.submitted_seconds + SUBMISSION_SECONDS * draw.random()
    job.pauses = _draw_pauses(draw, job.submitted_seconds)
    job.priorities = tuple(
        (CHANGE_SECONDS * draw.random(), draw.choice((-1, 0, 1, 2))) for _ in range(draw.choice((0, 0, 1, 2)))
    )
    if draw.random() < SPLIT_JOBS:
        job.split(draw, workers)
    return job


def _draw_pauses(draw: random.Random, submitted_seconds: float) -> tuple[tuple[float, float], ...]:
    pauses, after = [], submitted_seconds
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        begins_seconds = after + CHANGE_SECONDS / 3 * draw.random()
        pauses.append((begins_seconds, MOST_PAUSE_SECONDS * draw.random()))
        after = sum(pauses[-1])
    return tuple(pauses)


def _with_liar(usual: Scenario) -> Scenario:
    """Return a scenario with a liar, which all jobs check. Its faults leave the workers alone, as in `lying`."""
    for job in usual.jobs:
        job.plan = replace(job.plan, verify_fraction=1.0)
        job.submitted_seconds += LIAR_COMES_SECONDS
    kinds = ("aggregator", "optimizer", "optimizer link") if usual.tiers == 3 else ("aggregator",)
    return replace(usual, liar=True, voices=True, fault_kinds=kinds)
