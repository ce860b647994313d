"""The code that a job is pinned to, and its change when no worker of that code is left: a rolling upgrade.

Workers of other code wait. After a change the job continues at its newest checkpoint, in a new generation: so each
step's code follows from the record alone, whichever processes die later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from aggregator.core.membership.claims import SHOWN_DIGITS
from aggregator.core.membership.members import Member
from protos.cluster_pb2 import Void
from protos.jobs_pb2 import CodeChange, Job
from services.protocol.fingerprint import CODE
from services.protocol.versions import Version

MOST_CHANGES = 64
"""Maximum number of changes in a job's record; older ones are forgotten."""


class CodePin:
    """The changes of one job's code, kept in its record, which is on disk before any change takes effect.

    Args:
        job: the job's record.
        members: the connected workers, by session.
        wait_seconds: time without any worker of the pinned code after which the code changes.
    """

    def __init__(self, job: Job, members: Mapping[int, Member], wait_seconds: float) -> None:
        self._job = job
        self._members = members
        self._wait_seconds = wait_seconds
        self._since_seconds: float | None = None

    def find_due_change(self, now: float) -> str | None:
        """Return the code to change to: that of most waiting workers; None while no change is due."""
        waiting = Counter(
            each.claim_wait.ready.fingerprint.get(CODE, "")
            for each in self._members.values()
            if each.claim_wait is not None
        )
        if not waiting or any(each.ready or each.rebuilds for each in self._members.values()):
            self._since_seconds = None
            return None
        if self._since_seconds is None:
            self._since_seconds = now
        if now - self._since_seconds <= self._wait_seconds:
            return None
        return min(waiting, key=lambda code: (-waiting[code], code))

    def change(self, before: str, after: str) -> CodeChange:
        """Put a change at the newest checkpoint into the job's record and return it."""
        self._since_seconds = None
        job = self._job
        change = CodeChange(before=before, after=after, generation=job.generation, step=job.checkpoint_step)
        job.code_changes.append(change)
        del job.code_changes[:-MOST_CHANGES]
        return change

    def is_void(self, version: Version) -> bool:
        """Return whether a version belongs to a generation of earlier code."""
        return any(version.generation <= each.generation for each in self._job.code_changes)

    def void_checkpoints(self) -> list[Void]:
        """Return which checkpoints are void because earlier code made them after the job had left it."""
        return [Void(generation=each.generation, step=each.step) for each in self._job.code_changes]


def shorten_code(code: str) -> str:
    """Return a code's hash as people are shown it."""
    return code[:SHOWN_DIGITS] or "unknown"
