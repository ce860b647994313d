"""Whether as many workers are there as a job wants, and who could be the others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aggregator.core.membership.admission import Admission
from aggregator.core.membership.members import Member


class Quorum:
    """`min_workers` of a job.

    Args:
        wanted: how many workers.
        members: those that are connected, by session.
        fitness: knows who took part before.
        note: tells the job's log.
    """

    def __init__(
        self, wanted: int, members: Mapping[int, Member], admission: Admission, note: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._members = members
        self._fitness = admission
        self._note = note
        self._short_since_seconds: float | None = None

    def enough(self, now: float) -> bool:
        """Whether work may be given out; the log is told whenever that changes."""
        there, since = len(self._present()), self._short_since_seconds
        if there >= self._wanted or self._wanted == 1:
            if since is not None:
                self._short_since_seconds = None
                self._note(f"goes on with {there} workers, after {now - since:.0f} s")
            return True
        if since is None:
            self._short_since_seconds = now
            self._note(f"waits for {self._shortage()}")
        return False

    def waits_for(self, now: float) -> str:
        """How many workers are there, how many are wanted, who could be the others, for how long; empty if enough."""
        since = self._short_since_seconds
        return "" if since is None else f"{self._shortage()}; for {now - since:.0f} s"

    def _present(self) -> list[str]:
        return [member.name for member in self._members.values() if member.able]

    def _shortage(self) -> str:
        present = self._present()
        missing = dict.fromkeys(self._fitness.missing(present), "gone")
        for each in self._members.values():
            if not each.able:
                missing[each.name] = each.refused or each.unfit or each.describe()
        others = ", ".join(f"{name} ({why})" for name, why in sorted(missing.items()))
        return (
            f"workers: {len(present)} of the {self._wanted} that the job wants (min_workers) are there"
            f"{f'; missing: {others}' if others else ''}"
        )
