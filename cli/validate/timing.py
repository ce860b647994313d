"""The time of a job, and whether its evaluations take most of it."""

from __future__ import annotations

from dataclasses import asdict
from math import ceil
from typing import Any

from cli.validate.cluster import Cluster, find_computing, share_out
from services.config.job import JobConfig
from services.printable import counted
from services.sizing.step_time import estimate_job_time, estimate_step_time

_ADVISED_SHARE = 0.1
"""Time of an evaluation that is advised, as a share of the training between two."""


def describe_time(
    config: JobConfig, cluster: Cluster, evaluation_batches: int | None
) -> dict[str, Any] | None:
    """Return the seconds of a step by part and of the job; None if no rate of links is given.

    The object has `unknown`, with a reason, in place of the seconds if these are unknown.

    Args:
        config: config of the job.
        cluster: the cluster.
        evaluation_batches: batches of an evaluation; None if workers know it only.

    Raises:
        Refused: the file of measured times is wrong.
    """
    if cluster.link_bits is None:
        return None
    workers = cluster.workers or config.num_workers
    computing = find_computing(config, cluster)
    report = {"link_bits_per_second": cluster.link_bits}
    if isinstance(computing, str):
        return report | {"unknown": computing}
    sharing = share_out(config, workers)
    step = estimate_step_time(
        config,
        computing.times,
        sharing,
        link_bits=cluster.link_bits,
        workers=workers,
        tiers=2 if cluster.shards else cluster.tiers,
        shards=cluster.shards,
    )
    job = estimate_job_time(
        config,
        computing.times,
        step,
        link_bits=cluster.link_bits,
        workers=workers,
        shards=cluster.shards,
        evaluation_batches=evaluation_batches,
    )
    return report | {
        "computing_from": computing.source,
        "most_micro_batches": sharing.most,
        **asdict(step),
        "step_seconds": step.step_seconds,
        **asdict(job),
        "job_seconds": job.job_seconds,
    }


def advise_on_evaluation(
    config: JobConfig, workers: int, evaluation_batches: int | None, time: dict[str, Any] | None
) -> str | None:
    """Return a line if an evaluation takes longer than the training between two; else None.

    Without times, passes are compared by their sequences: an evaluation has forward passes alone, which take a third.

    Args:
        config: config of the job.
        workers: number of worker daemons.
        evaluation_batches: batches of an evaluation; None if workers know it only.
        time: result of `describe_time`.
    """
    if evaluation_batches is None:
        return None
    holders, interval = (
        config.count_holders(workers),
        min(config.evaluate_every or config.steps, config.steps),
    )
    if time is not None and "unknown" not in time:
        training, evaluation = interval * time["step_seconds"], time["evaluation_seconds"]
    else:
        most = share_out(config, workers).most
        training = 3.0 * interval * most * config.batch_size
        evaluation = -(-evaluation_batches // holders) * config.validation_batch_size
    if evaluation <= training:
        return None
    rounds = -(-evaluation_batches // holders)
    fewer = int(_ADVISED_SHARE * training / evaluation * rounds)
    advised = f"training_config.validation_batches: {holders * max(1, fewer)}"
    if interval < config.steps:
        least = ceil(interval * evaluation / rounds / (_ADVISED_SHARE * training))
        advised += ", or a larger eval_every" if fewer else f" with eval_every: {least}"
    return (
        f"an evaluation of {counted(evaluation_batches, 'batch', 'batches')} takes {evaluation / training:.1f} times "
        f"as long as the {counted(interval, 'step')} before it; write for example {advised}"
    )
