"""Failed leases: whether the worker or the job itself is at fault."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.core.leasing.planning import describe_range
from services.errors import Refusal
from services.protocol.phases import JobPhase
from services.protocol.versions import Version

MOST_FAILURES = 3
"""Number of leases in a row that may fail before their worker is refused."""


@dataclass(frozen=True)
class Blame:
    """The party at fault for a failed lease, or for the death of a worker.

    Attributes:
        job: why the job must end; None if it may go on.
        worker: why the worker must be refused; None if it may go on.
    """

    job: str | None = None
    worker: Refusal | None = None


@dataclass(frozen=True)
class LeasedWork:
    """The work of a lease.

    Attributes:
        phase: the job's phase.
        version: the version of the weights; None before there are any.
        indices: micro-batches, or held-out batches in an evaluation.
    """

    phase: JobPhase
    version: Version | None
    indices: range

    def overlaps(self, other: LeasedWork) -> bool:
        """Return whether both contain some of the same work."""
        alike = (self.phase, self.version) == (other.phase, other.version)
        return alike and max(self.indices.start, other.indices.start) < min(
            self.indices.stop, other.indices.stop
        )

    def __str__(self) -> str:
        if self.version is None:
            return "making the initial weights"
        unit = "batch" if self.phase is JobPhase.EVALUATE else "micro-batch"
        return f"{describe_range(unit, self.indices.start, len(self.indices))} of step {self.version.step}"


class LeaseFailures:
    """The failed leases of one job.

    Failed work goes to another worker. If it fails there too, the job is at fault: it would fail on every worker.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, LeasedWork], str] = {}

    def add(self, worker: str, work: LeasedWork, reason: str) -> str | None:
        """Record a failure; return both workers' reasons if the job is at fault, else None."""
        current = {key: text for key, text in self._reasons.items() if key[1].version == work.version}
        self._reasons = {**current, (worker, work): reason}
        for (other, failed), text in current.items():
            if other != worker and failed.overlaps(work):
                return f"{work} failed on two workers; {other}: {text}; {worker}: {reason}"
        return None

    def clear(self, work: LeasedWork) -> None:
        """Forget failures of work that a worker has now done: the job was not at fault."""
        self._reasons = {key: text for key, text in self._reasons.items() if not key[1].overlaps(work)}
