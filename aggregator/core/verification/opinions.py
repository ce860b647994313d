"""Which micro-batches are computed twice, and what the checksums of their gradients say of who computed them. Pure.

Hardware lies now and then. Gradients follow from the job, the step and the micro-batch alone, to the bit, so whoever
has another checksum than others have, or than it had itself, is faulty.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

_HASHES = 1 << 64


def sampled(job: str, step: int, micro_batches: int, fraction: float) -> tuple[int, ...]:
    """The micro-batches of a step that are checked: each with a probability of `fraction`, always the same ones."""
    if not fraction:
        return ()
    return tuple(each for each in range(micro_batches) if _hash(job, step, each) < fraction * _HASHES)


def _hash(job: str, step: int, micro_batch: int) -> int:
    digest = hashlib.blake2b(f"{job}/{step}/{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Opinion:
    """What a worker says of a micro-batch.

    Attributes:
        worker: by name.
        lease: under which it was computed; a repeated message brings no second opinion.
        crc32c: of the gradient.
    """

    worker: str
    lease: int
    crc32c: int


def agree(opinions: Iterable[Opinion]) -> bool:
    """Whether all have the same checksum."""
    return len({each.crc32c for each in opinions}) <= 1


def faulty(opinions: Sequence[Opinion]) -> set[str]:
    """The workers that these convict: who contradicts itself, else who contradicts what most of the others agree on.

    None where all agree, and where nobody can say: two workers that stand by what they said.
    """
    said: dict[str, set[int]] = {}
    for each in opinions:
        said.setdefault(each.worker, set()).add(each.crc32c)
    unsteady = {worker for worker, checksums in said.items() if len(checksums) > 1}
    if unsteady:
        return unsteady
    votes = Counter(checksum for checksums in said.values() for checksum in checksums)
    (most, count), *others = votes.most_common()
    if not others or count == 1 or others[0][1] == count:
        return set()
    return {worker for worker, checksums in said.items() if most not in checksums}


def whom_to_ask(opinions: Iterable[Opinion], able: Collection[str]) -> list[str]:
    """Of the workers that could compute it, those whose opinion tells most: others first, then each a second time."""
    given = Counter(each.worker for each in opinions)
    return [name for name in able if not given[name]] or [name for name in able if given[name] == 1]


@dataclass
class Check:
    """One micro-batch that is checked.

    Attributes:
        micro_batch: of the step.
        opinions: so far; the first is of who computed it for the step's sum.
        lease: under which it is being computed again; 0: under none.
        session: of the worker that does.
        since_seconds: when it was granted, before that when the first opinion came; monotonic.
        declined: workers that were asked and did not answer.
        outcome: passed, faulty, undecided or abandoned; empty while it is open.
    """

    micro_batch: int
    opinions: list[Opinion] = field(default_factory=list)
    lease: int = 0
    session: int = 0
    since_seconds: float = 0.0
    declined: set[str] = field(default_factory=set)
    outcome: str = ""

    def told(self, opinion: Opinion) -> None:
        """Take an opinion; one of a lease that has told is a repeated message."""
        if all(each.lease != opinion.lease for each in self.opinions):
            self.opinions.append(opinion)

    def described(self) -> str:
        """Who has which checksum, for people."""
        return ", ".join(f"{each.worker} {each.crc32c:#010x}" for each in self.opinions)
