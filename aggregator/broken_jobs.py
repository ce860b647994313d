"""Jobs that the aggregator can't run: stored ones that it can't read, and one that it fails on."""

from __future__ import annotations

from typing import NamedTuple

from services.config.job import JobConfig
from services.config.job_inputs import input_hashes
from services.errors import Refusal, Refused, name_internal_error
from services.protocol.plan import JobPlan


class JobCrashed(Exception):
    """An unexpected error of the aggregator while it ran a job.

    Attributes:
        job: the job's id.
        step: the job's step.
        reason: the error, as one line.
    """

    def __init__(self, job: str, step: int, reason: str) -> None:
        super().__init__(f"job {job}: step {step}: {reason}")
        self.job = job
        self.step = step
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
    """

    plan: JobPlan | Refusal
    inputs: frozenset[str]


def read_stored(spec_json: str) -> StoredSpec:
    """Return what the aggregator needs of a stored job."""
    try:
        config = JobConfig.from_json(spec_json)
        return StoredSpec(config.plan(), input_hashes(config))
    except Refused as refused:
        return StoredSpec(Refusal(f"the stored job can't be used: {refused}"), frozenset())
    except Exception as error:  # one job must not stop the start
        reason = Refusal(f"the stored job can't be read: {name_internal_error(error)}")
        return StoredSpec(reason, frozenset())
