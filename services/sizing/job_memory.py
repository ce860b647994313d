"""Memory that a job needs in one process of each role, from its config alone."""

from __future__ import annotations

from services.config.job import JobConfig
from services.config.parameters import count_largest, count_parameters
from services.sizing.host_memory import RoleMemory, estimate_host_memory
from services.sizing.pipeline import count_stage_elements, count_worker_elements


def estimate_job_memory(config: JobConfig, *, workers: int, tiers: int, shards: int) -> list[RoleMemory]:
    """Return the memory of one process of each role; nothing if only workers know the model's size.

    With a pipeline, a worker's is that of the one that has most parameters.

    Args:
        config: config of the job.
        workers: number of worker daemons.
        tiers: 3 for an optimizer of its own, 2 for one inside the aggregator.
        shards: number of shards; 0 for none.
    """
    vocabulary = config.vocabulary
    elements = None if vocabulary is None else count_parameters(config.model, vocabulary)
    if vocabulary is None or elements is None:
        return []
    stages = count_stage_elements(config, vocabulary) or [elements]
    return estimate_host_memory(
        config,
        elements,
        worker_elements=count_worker_elements(stages, workers),
        largest_elements=count_largest(config.model, vocabulary),
        workers=workers,
        tiers=tiers,
        shards=shards,
    )
