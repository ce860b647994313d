"""Workers that a job has found faulty: they take no part in it again, even after a restart."""

from __future__ import annotations

from aggregator.core.verification.checks import Finding
from protos.cluster_pb2 import Void
from protos.jobs_pb2 import Exclusion, Job
from services.errors import Refusal
from services.protocol.versions import Version


class Exclusions:
    """The excluded workers of one job, kept in its record, which is on disk before any exclusion takes effect."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def find(self, worker: str) -> Refusal | None:
        """Return why a worker is excluded and how to get it back; None if it is not excluded."""
        return next((Refusal(each.reason) for each in self._job.excluded if each.worker == worker), None)

    def add(self, finding: Finding, version: Version) -> None:
        """Exclude the workers that were found faulty at a version."""
        for worker in sorted(finding.workers):
            reason = (
                f"faulty: {finding.text}; the worker is excluded from this job; after a repair of its hardware, "
                "start it with another --name"
            )
            self._job.excluded.append(
                Exclusion(
                    worker=worker,
                    generation=version.generation,
                    step=version.step,
                    reason=reason,
                    trusted_step=finding.trusted_step,
                )
            )

    def add_found_elsewhere(self, worker: str, reason: str) -> bool:
        """Exclude a worker that another job has found faulty; return whether its work is in the present weights."""
        trusted_step = self._job.trusted_steps.get(worker)
        contributed = trusted_step is not None and trusted_step < self._job.step
        self._job.excluded.append(
            Exclusion(
                worker=worker,
                generation=self._job.generation if contributed else 0,  # which voids nothing
                step=self._job.step,
                reason=reason,
                trusted_step=trusted_step,
            )
        )
        return contributed

    def is_void(self, version: Version) -> bool:
        """Return whether sums of a version are void because a worker was found faulty in its generation."""
        return any(version.generation <= each.generation for each in self._job.excluded)

    def void_checkpoints(self) -> list[Void]:
        """Return which checkpoints are void because a faulty worker may have contributed to them."""
        return [Void(generation=each.generation, step=each.trusted_step) for each in self._job.excluded]
