"""The quorum: the least number of workers that a job needs, and the workers that are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aggregator.core.membership.admission import Admission
from aggregator.core.membership.members import Member
from services.printable import counted, join_reasons


class Quorum:
    """The job's `min_workers`: below that number, no new work is leased.

    Args:
        wanted: the least number of workers.
        members: the connected workers, by session.
        admission: knows which workers took part before.
        note: publishes a line to the job's log.
    """

    def __init__(
        self, wanted: int, members: Mapping[int, Member], admission: Admission, note: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._members = members
        self._admission = admission
        self._note = note
        self._short_since_seconds: float | None = None

    def is_reached(self, now: float) -> bool:
        """Return whether work may be leased; publish a line whenever that changes."""
        present, since = len(self._present()), self._short_since_seconds
        if self._suffices(present):
            if since is not None:
                self._short_since_seconds = None
                self._note(f"the job continues with {counted(present, 'worker')} after {now - since:.0f} s")
            return True
        if since is None:
            self._short_since_seconds = now
            self._note(f"the job waits for {self._shortage()}")
        return False

    def describe_shortage(self, now: float) -> str | None:
        """Return how many workers are there, how many are wanted, who is missing and for how long; None if enough."""
        since = self._short_since_seconds
        if since is None or self._suffices(len(self._present())):
            return None
        return f"waits for {self._shortage()}; for {now - since:.0f} s"

    def _suffices(self, present: int) -> bool:
        return present >= self._wanted or self._wanted == 1

    def _present(self) -> list[str]:
        return [member.name for member in self._members.values() if member.present]

    def _shortage(self) -> str:
        present = self._present()
        missing = dict.fromkeys(self._admission.missing(present), "gone")
        for each in self._members.values():
            if not each.present:
                missing[each.name] = each.describe()
        others = join_reasons(missing)
        return (
            f"workers: {len(present)} of the {self._wanted} wanted are ready (min_workers)"
            f"{f'; missing: {others}' if others else ''}"
        )
