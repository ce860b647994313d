"""The sample of micro-batches that are computed twice, and the verdict on the workers' checksums.

Hardware sometimes computes wrong results. A gradient's bits follow from the job, the step and the micro-batch alone.
So a worker is faulty if its checksum differs from that of most others, or from its own at a second attempt.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    """A worker's checksum of a micro-batch's gradient, or of one pass of it.

    Attributes:
        worker: the worker's name.
        lease: the lease under which it was computed; a repeated message has the same one.
        crc32c: the checksum.
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
