"""Memory that a job needs in each role, by the figures of `validate`."""

from __future__ import annotations

from aggregator.core.scheduling.room import RoleNeed
from services.config.job import JobConfig
from services.sizing.job_memory import estimate_job_memory


def find_needs(config: JobConfig, *, tiers: int, shards: int) -> dict[str, RoleNeed]:
    """Return the memory that a job needs of one process of each role; empty if only workers know the model's size.

    Args:
        config: the complete job.
        tiers: 2 or 3.
        shards: number of the aggregator's shards.
    """
    found = estimate_job_memory(config, workers=config.min_workers, tiers=tiers, shards=shards)
    return {each.role: RoleNeed(each.memory_bytes, each.checkpoint_bytes) for each in found}
