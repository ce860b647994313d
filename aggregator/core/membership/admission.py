"""Who may take part in a job: workers that build what the first one built, on what the same bits hang. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aggregator.core.membership.members import Member
from services.timeouts import Timeouts


class Admission:
    """What a job asks of its workers.

    Attributes:
        fingerprint: of the first worker, which the job pins; empty until there was one.
        layout_hash: of the job's layout; empty until it is known.
    """

    def __init__(
        self, *, exact: bool, fingerprint: Mapping[str, str], timeouts: Timeouts, now: float
    ) -> None:
        self.fingerprint = dict(fingerprint)
        self.layout_hash = ""
        self._exact = exact
        self._unfit_seconds = timeouts.unfit  # a person may mend meshes meanwhile
        self._fit: set[str] = set()
        self._unfit_since_seconds: float | None = None
        self._expected_until_seconds = now + timeouts.comeback if fingerprint else now

    def why_not_layout(self, layout_hash: str) -> str:
        """Why a worker that has built this layout can't take part; empty if it can."""
        if self.layout_hash in ("", layout_hash):
            return ""
        return (
            f"its model's layout hash {layout_hash[:12]} differs from the job's {self.layout_hash[:12]}; "
            "give all hosts the same version of Tiermesh"
        )

    def why_not(self, layout_hash: str, fingerprint: Mapping[str, str]) -> str:
        """Why a worker that has built this can't take part; empty if it can."""
        return self.why_not_layout(layout_hash) or self._why_not_fingerprint(fingerprint)

    def _why_not_fingerprint(self, fingerprint: Mapping[str, str]) -> str:
        differing = self.differences(fingerprint)
        if not (self._exact and differing):
            return ""
        return f"fingerprint differs: {differing} (`exact: false` in the job would accept it)"

    def differences(self, fingerprint: Mapping[str, str]) -> str:
        """In what a worker differs from the job's first: chips, sizes, versions; empty if in nothing."""
        if not self.fingerprint:
            return ""
        return "; ".join(
            f"{key} is {fingerprint.get(key, 'absent')!r}, the job's is {self.fingerprint.get(key, 'absent')!r}"
            for key in sorted(fingerprint.keys() | self.fingerprint.keys())
            if fingerprint.get(key) != self.fingerprint.get(key)
        )

    def admitted(self, name: str) -> None:
        """A worker takes part."""
        self._fit.add(name)

    def missing(self, present: Collection[str]) -> list[str]:
        """Those that took part, aren't refused, and are not among these."""
        return sorted(self._fit - set(present))

    def refused(self, name: str) -> None:
        """A worker takes no part (any more)."""
        self._fit.discard(name)

    def hopeless(self, members: Collection[Member], now: float) -> bool:
        """Whether all who are connected are refused, or unfit for long, and nobody who could take part is expected."""
        able = any(not (member.refused or member.unfit) for member in members)
        if able or not members or self._fit or now < self._expected_until_seconds:
            self._unfit_since_seconds = None
            return False
        if self._unfit_since_seconds is None:
            self._unfit_since_seconds = now
        unfit = any(member.unfit for member in members)
        return not unfit or now - self._unfit_since_seconds > self._unfit_seconds
