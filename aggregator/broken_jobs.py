"""Jobs that the aggregator can't run: stored ones that it can't read, and those that it fails on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from aggregator.core.scheduling.room import RoleNeed
from aggregator.job_needs import find_needs
from services.config.job import JobConfig
from services.config.job_inputs import input_hashes
from services.errors import Refusal, Refused, name_internal_error
from services.protocol.plan import JobPlan


class JobsCrashed(Exception):
    """An unexpected error of the aggregator while it ran jobs, outside of any one job's part.

    Attributes:
        steps: the jobs' steps, by id.
        reason: the error, as one line.
    """

    def __init__(self, steps: Mapping[str, int], reason: str) -> None:
        where = "; ".join(f"job {job}: step {step}" for job, step in steps.items())
        super().__init__(f"{where}: {reason}")
        self.steps = steps
        self.reason = reason


class ShardFailed(Exception):
    """Unexpected error of a shard, which carries out what this aggregator decides. The text names the shard."""


def describe_crash(error: Exception) -> str:
    """Return one line about the error that ended an aggregator."""
    return str(error) if isinstance(error, ShardFailed) else name_internal_error(error)


class StoredSpec(NamedTuple):
    """A stored job, read again.

    Attributes:
        plan: the job's plan, or why it can't be used.
        inputs: the SHA-256 of the files that the job names.
        needs: memory that it needs, by role; empty if that is unknown.
    """

    plan: JobPlan | Refusal
    inputs: frozenset[str]
    needs: Mapping[str, RoleNeed] = MappingProxyType({})


def read_stored(spec_json: str, *, tiers: int, shards: int) -> StoredSpec:
    """Return what the aggregator needs of a stored job.

    Args:
        spec_json: the complete job.
        tiers: 2 or 3.
        shards: number of the aggregator's shards.
    """
    try:
        config = JobConfig.from_json(spec_json)
        needs = find_needs(config, tiers=tiers, shards=shards)
        return StoredSpec(config.plan(), input_hashes(config), needs)
    except Refused as refused:
        return StoredSpec(Refusal(f"the stored job can't be used: {refused}"), frozenset())
    except Exception as error:  # one job must not stop the start
        reason = Refusal(f"the stored job can't be read: {name_internal_error(error)}")
        return StoredSpec(reason, frozenset())
