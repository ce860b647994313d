"""Workers that a job has found faulty: they take no part in it any more, whatever restarts. Pure."""

from __future__ import annotations

from aggregator.core.verification.checks import Finding
from protos.cluster_pb2 import Void
from protos.jobs_pb2 import Exclusion, Job
from services.protocol.versions import Version


class Exclusions:
    """Of one job, in its record, which is on disk before anybody acts on it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def why(self, worker: str) -> str:
        """Why a worker takes no part, and how it may; empty if it may."""
        return next((each.reason for each in self._job.excluded if each.worker == worker), "")

    def add(self, finding: Finding, version: Version) -> None:
        """Exclude who is found faulty at a version."""
        for worker in sorted(finding.workers):
            reason = (
                f"faulty: {finding.text}; it takes no part in this job any more; once its hardware is mended, start it "
                "with another --name"
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

    def void(self, version: Version) -> bool:
        """Whether what is summed at a version counts no more, as a worker was found faulty under its generation."""
        return any(version.generation <= each.generation for each in self._job.excluded)

    def void_checkpoints(self) -> list[Void]:
        """Which checkpoints are void, as whoever was found faulty may have had a part in them."""
        return [Void(generation=each.generation, step=each.trusted_step) for each in self._job.excluded]
