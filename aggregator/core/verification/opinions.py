"""The sample of micro-batches that are computed twice, and the verdict on the workers' checksums.

Hardware sometimes computes wrong results. A gradient's bits follow from the job, the step and the micro-batch alone.
So a worker is faulty if its checksum differs from that of most others, or from its own at a second attempt.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

_DRAW_BYTES = 8
"""Size of the random number drawn for each micro-batch."""


def sample_micro_batches(job: str, step: int, micro_batches: int, fraction: float) -> tuple[int, ...]:
    """Return the micro-batches of a step that are checked, each with a probability of `fraction`.

    The same job and step always give the same sample.
    """
    if not fraction:
        return ()
    drawn = hashlib.shake_128(f"{job}/{step}".encode()).digest(_DRAW_BYTES * micro_batches)
    below = fraction * (1 << 8 * _DRAW_BYTES)
    return tuple(index for (index, (draw,)) in enumerate(struct.iter_unpack("<Q", drawn)) if draw < below)


class CheckOutcome(str, Enum):
    """Outcome of a micro-batch's check; the value is a metric's label."""

    PASSED = "passed"
    FAULTY = "faulty"
    UNDECIDED = "undecided"
    ABANDONED = "abandoned"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Opinion:
    """A worker's checksum of a micro-batch's gradient.

    Attributes:
        worker: the worker's name.
        lease: the lease under which it was computed; a repeated message has the same one.
        crc32c: the gradient's checksum.
    """

    worker: str
    lease: int
    crc32c: int


def agree(opinions: Iterable[Opinion]) -> bool:
    """Return whether all checksums are the same."""
    return len({each.crc32c for each in opinions}) <= 1


def find_faulty(opinions: Sequence[Opinion]) -> set[str]:
    """Return the workers that the opinions prove faulty.

    These are the workers that contradict themselves; if there are none, those that contradict the majority. The set
    is empty if all agree, or if no majority exists: two workers that each repeat their own checksum.
    """
    checksums_of: dict[str, set[int]] = {}
    for each in opinions:
        checksums_of.setdefault(each.worker, set()).add(each.crc32c)
    unsteady = {worker for worker, checksums in checksums_of.items() if len(checksums) > 1}
    if unsteady:
        return unsteady
    votes = Counter(checksum for checksums in checksums_of.values() for checksum in checksums)
    (most, count), *others = votes.most_common()
    if not others or count == 1 or others[0][1] == count:
        return set()
    return {worker for worker, checksums in checksums_of.items() if most not in checksums}


def choose_next(opinions: Iterable[Opinion], able: Collection[str]) -> list[str]:
    """Return the able workers to ask next: those without an opinion, or else those with one."""
    given = Counter(each.worker for each in opinions)
    return [name for name in able if not given[name]] or [name for name in able if given[name] == 1]


@dataclass
class Check:
    """The check of one micro-batch.

    Attributes:
        micro_batch: its index in the step.
        opinions: the checksums so far; the first is from the worker that computed it for the step's sum.
        lease: the lease under which it is being computed again; 0 if it isn't.
        session: the session of the worker with that lease.
        since_seconds: when that lease was granted or, before that, when the first opinion came. On the monotonic
            clock.
        declined: workers that were asked and did not answer.
        outcome: how the check ended; None while it is open.
    """

    micro_batch: int
    opinions: list[Opinion] = field(default_factory=list)
    lease: int = 0
    session: int = 0
    since_seconds: float = 0.0
    declined: set[str] = field(default_factory=set)
    outcome: CheckOutcome | None = None

    def add(self, opinion: Opinion) -> None:
        """Record an opinion, unless its lease has one already: then it is a repeated message."""
        if all(each.lease != opinion.lease for each in self.opinions):
            self.opinions.append(opinion)

    def describe_opinions(self) -> str:
        """Return each worker's checksum as text."""
        return ", ".join(f"{each.worker} {each.crc32c:#010x}" for each in self.opinions)
