"""Deaths of workers by a fault while they worked for a job, and the decision whether the job or a worker is at fault.

A lost link says nothing: a network can fail, and a person can kill a worker. So a death counts only if the worker's
next start reports a fault of the process, such as SIGSEGV. Both sides must agree that the process worked for the job.
"""

from __future__ import annotations

import signal

from aggregator.core.leasing.failures import Blame
from protos.cluster_pb2 import Predecessor
from services.errors import Refusal
from services.printable import printable

MOST_DEATHS = 3
"""Number of deaths without a COMMIT between them after which the job, or the one worker that dies, is at fault."""

FAULT_CHARACTERS = 120
"""Longest quotation of a worker's report on what killed it."""

NAMES_CHARACTERS = 60
"""Longest list of the workers that died."""

MOST_LOST = 256
"""Maximum number of lost processes whose successors are waited for."""

FAULTS = frozenset(
    (
        *(signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV),
        *(signal.SIGTRAP, signal.SIGSYS, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    )
)
"""Signals by which a process ends through a fault or a timer of its own. SIGKILL is never one: a person or the kernel
sends it."""


def describe_fault(predecessor: Predecessor) -> str:
    """Return what killed a worker, as a part of a line."""
    return printable(predecessor.text or f"signal {predecessor.signal}", FAULT_CHARACTERS)


class WorkerDeaths:
    """The workers of one job that were killed by a fault since its last COMMIT.

    Args:
        job: the job's id.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._lost: dict[str, str] = {}  # workers that were lost at work, by incarnation
        self._deaths: list[str] = []  # names of the workers
        self._refusals: dict[str, Refusal] = {}

    def note_lost_at_work(self, worker: str, incarnation: str) -> None:
        """Record that a process is lost that worked for the job; its successor may say that it died by a fault."""
        self._lost[incarnation] = worker
        if len(self._lost) > MOST_LOST:
            del self._lost[next(iter(self._lost))]

    def note_commit(self) -> None:
        """Forget deaths and losses: the job makes progress, so it is not at fault."""
        self._lost.clear()
        self._deaths.clear()

    def find_refusal(self, worker: str) -> Refusal | None:
        """Return why a worker takes no further part, since it alone keeps dying; None if it may."""
        return self._refusals.get(worker)

    def add(self, worker: str, predecessor: Predecessor) -> Blame | None:
        """Record how a worker's previous process ended; return who is at fault, None if it did not die of this job."""
        at_work = self._lost.pop(predecessor.incarnation, None) == worker
        if not at_work or predecessor.job != self._job or predecessor.signal not in FAULTS:
            return None
        fault = describe_fault(predecessor)
        self._deaths.append(worker)
        if len(self._deaths) < MOST_DEATHS:
            return Blame()
        names = sorted(set(self._deaths))
        died = f"died {len(self._deaths)} times while computing job {self._job}, with no step between"
        if names == [worker]:  # the job may be at fault, but one worker can't say so
            self._deaths.clear()
            refusal = Refusal(
                f"it {died}: {fault}; check its hardware and the job's model, then start it with another --name"
            )
            self._refusals[worker] = refusal
            return Blame(worker=refusal)
        return Blame(job=f"workers {printable(', '.join(names), NAMES_CHARACTERS)} {died}; the last: {fault}")
