"""Deaths of compute processes in a row, and whether the job that they worked for or one worker is at fault.

A worker tells that its compute process has ended by itself, and of what. A worker that is gone has told nothing, so it
counts as lost alone: a network can fail, and a person can kill it.
"""

from __future__ import annotations

from aggregator.core.leasing.failures import Blame
from services.errors import Refusal
from services.printable import printable

MOST_DEATHS = 3
"""Number of deaths without a COMMIT between them after which the job, or the one worker that has them, is at fault."""

REASON_CHARACTERS = 200
"""Longest quotation of what a worker says of a death."""

NAMES_CHARACTERS = 60
"""Longest list of the workers whose compute processes died."""


MOST_REFUSALS = 256
"""Maximum number of excluded workers that a job remembers."""


class ComputeDeaths:
    """The compute processes that died of one job since its last COMMIT.

    Args:
        job: the job's id.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._workers: list[str] = []  # names, by death
        self._refusals: dict[str, Refusal] = {}  # by incarnation of the worker

    def note_commit(self) -> None:
        """Forget the deaths: the job makes progress, so it is not at fault."""
        self._workers.clear()

    def find_refusal(self, incarnation: str) -> Refusal | None:
        """Return why a worker takes no part until it is restarted, since it alone had deaths; None if it may."""
        return self._refusals.get(incarnation)

    def add(self, worker: str, incarnation: str, reason: str) -> Blame:
        """Record the death of a worker's compute process; return who is at fault.

        Args:
            worker: name of the worker.
            incarnation: id of the worker's own process.
            reason: what it says of the death.
        """
        self._workers.append(worker)
        if len(self._workers) < MOST_DEATHS:
            return Blame()
        names = sorted(set(self._workers))
        times = f"died {len(self._workers)} times while computing job {self._job}, with no step between"
        last = printable(reason, REASON_CHARACTERS)
        if names != [worker]:
            who = printable(", ".join(names), NAMES_CHARACTERS)
            return Blame(job=f"compute processes of workers {who} {times}; the last: {last}")
        # The job may be at fault, but one worker can't say so. The next death of another one can.
        refusal = self._refusals[incarnation] = Refusal(
            f"its compute process {times}; the last: {last}; check its hardware and the job's model, then restart it"
        )
        if len(self._refusals) > MOST_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        return Blame(worker=refusal)
