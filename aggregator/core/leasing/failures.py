"""Leases that workers could not do: whether that is a worker's fault or the job's own. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.core.waits import span
from services.protocol.versions import Version

MOST_FAILURES = 3
"""A worker of which so many leases fail in a row is refused."""


@dataclass(frozen=True)
class FailedWork:
    """What a lease asks for.

    Attributes:
        phase: of the job.
        version: of the weights; None while there are none.
        parts: micro-batches, or batches of held-out data.
    """

    phase: str
    version: Version | None
    parts: range

    def overlaps(self, other: FailedWork) -> bool:
        """Whether both ask for some of the same."""
        alike = (self.phase, self.version) == (other.phase, other.version)
        return alike and max(self.parts.start, other.parts.start) < min(self.parts.stop, other.parts.stop)

    def __str__(self) -> str:
        if self.version is None:
            return "the making of the initial weights"
        what = "batch" if self.phase == "evaluate" else "micro-batch"
        return f"{span(what, self.parts.start, len(self.parts))} of step {self.version.step}"


class LeaseFailures:
    """Those of one job. Work that fails goes to others; what fails on a second worker too would fail on every one."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, FailedWork], str] = {}

    def add(self, worker: str, work: FailedWork, reason: str) -> str:
        """A worker could not do this. Returns what two of them say of it if it is the job's fault; else empty."""
        known = {key: text for key, text in self._reasons.items() if key[1].version == work.version}
        self._reasons = {**known, (worker, work): reason}
        for (other, failed), text in known.items():
            if other != worker and failed.overlaps(work):
                return f"{work} failed on two workers; {other}: {text}; {worker}: {reason}"
        return ""

    def done(self, work: FailedWork) -> None:
        """Somebody could do this: those who could not are to blame themselves."""
        self._reasons = {key: text for key, text in self._reasons.items() if not key[1].overlaps(work)}
