"""job_time: a whole job of paced workers on shaped links, over what `tiermesh validate --link` says of it."""

from __future__ import annotations

import itertools
import os

from benchmarks.figures.step_time import PacedStepCluster, Shape, estimate, load_shape
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.logged_cluster import Event
from benchmarks.harness.report import report
from services.sizing.step_time import JobTime, estimate_job_time

NAME = "job_time_error"
BOUND = 0.20
JOB = ("training_config.max_steps=12", "eval_every=4", "model_save_interval=6")
SHAPES = (
    Shape("2 tiers", 3, 2, 400e6, 0.3, JOB),
    Shape("3 tiers", 3, 3, 400e6, 0.3, JOB),
    Shape("2 shards", 3, 2, 400e6, 0.3, JOB, shards=2),
)


def run() -> bool:
    """Measure a job of each shape from its first line to its end, and compare that with the estimate."""
    errors, details = [], [f"load before: {os.getloadavg()[0]:.1f}"]
    for shape in SHAPES:
        with Hosts(shape.hosts, shape.link_bits) as network, PacedStepCluster(shape, network) as cluster:
            events = cluster.job_events()
        said, measured = _estimate_job(shape), events[-1].seconds - events[0].seconds
        ratio = said.job_seconds / measured
        errors.append(abs(ratio - 1))
        start, steps, end = _parts(events)
        details += [
            f"{shape.name}, workers {shape.workers}, {shape.link_bits / 1e6:g} Mbit/s, {', '.join(shape.settings)}: "
            f"said over measured {ratio:.3f}",
            f"    measured {measured:.1f} s: start and first step {start:.1f} s, to the last step {steps:.1f} s, end "
            f"{end:.1f} s; said {said.job_seconds:.1f} s: start {said.start_seconds:.1f} s, steps "
            f"{said.steps_seconds:.1f} s, evaluations {said.evaluation_seconds or 0:.1f} s each, end "
            f"{said.end_seconds:.1f} s",
        ]
    return report(NAME, max(errors), BOUND, *details)


def _estimate_job(shape: Shape) -> JobTime:
    """Return what is said of a shape's job."""
    job, times = load_shape(shape)
    return estimate_job_time(
        job.config,
        times,
        estimate(shape),
        link_bits=shape.link_bits,
        workers=shape.workers,
        shards=shape.shards,
        evaluation_batches=job.config.evaluation_batches,
    )


def _parts(events: list[Event]) -> tuple[float, float, float]:
    """Return the seconds to the first COMMIT, from there to the last one, and from there to the end."""
    steps = [each.seconds for each in events if each.committed]
    start, steps_seconds, end = (
        after - before
        for before, after in itertools.pairwise((events[0].seconds, steps[0], steps[-1], events[-1].seconds))
    )
    return start, steps_seconds, end
