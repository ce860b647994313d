"""Answers: what a row has computed of a checked micro-batch.

Without a pipeline an answer is one checksum, of the whole gradient. In a pipeline it is a checksum of what each pass
puts out, in the order of the passes. An error of one pass changes whatever comes after it, in any worker. So only the
first pass that differs says who is faulty (docs/decisions/0045).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aggregator.core.verification.opinions import Opinion, agree, find_faulty
from protos.cluster_pb2 import Checksum


@dataclass(frozen=True)
class Answer:
    """The checksums of one micro-batch under one lease.

    Attributes:
        workers: the workers that had the lease.
        opinions: their checksums, in the order of the passes; at least one.
    """

    workers: tuple[str, ...]
    opinions: tuple[Opinion, ...]

    @property
    def lease(self) -> int:
        """Lease under which it was computed; a repeated message has the same one."""
        return self.opinions[0].lease

    def is_like(self, other: Answer) -> bool:
        """Return whether another answer has checksums of the same passes."""
        return len(self.opinions) == len(other.opinions)


Answers: TypeAlias = Mapping[int, Answer]
"""The answers of one lease, by micro-batch."""


def collect_answers(
    workers: tuple[str, ...], lease: int, reports: Iterable[tuple[str, Iterable[Checksum]]]
) -> dict[int, Answer]:
    """Return the answers of a lease.

    Args:
        workers: the workers that have the lease.
        lease: the lease's id.
        reports: each worker's name and checksums.
    """
    opinions: dict[int, dict[int, Opinion]] = {}
    for worker, checksums in reports:
        for each in checksums:
            by_place = opinions.setdefault(each.micro_batch, {})
            by_place.setdefault(each.place, Opinion(worker, lease, each.crc32c))
    return {
        micro_batch: Answer(workers, tuple(by_place[place] for place in sorted(by_place)))
        for micro_batch, by_place in opinions.items()
    }


def choose_next(answers: Iterable[Answer], able: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return which of the able to ask next: those that have not answered, or else those that have once.

    Args:
        answers: the answers so far.
        able: rows, by their workers' names.
    """
    given = Counter(each.workers for each in answers)
    return [each for each in able if not given[each]] or [each for each in able if given[each] == 1]


def find_difference(answers: Sequence[Answer]) -> int | None:
    """Return the place of the first pass whose checksums differ; None if all answers agree."""
    passes = enumerate(zip(*(each.opinions for each in answers), strict=False))
    return next((place for place, opinions in passes if not agree(opinions)), None)


def find_faulty_workers(answers: Sequence[Answer]) -> set[str]:
    """Return the workers that the answers prove faulty: by the first pass that differs, since its inputs did not."""
    place = find_difference(answers)
    return set() if place is None else find_faulty([each.opinions[place] for each in answers])


def describe_answers(answers: Sequence[Answer]) -> str:
    """Return each worker's checksum of the first pass that differs, or else of the last one, as text."""
    if not answers:
        return "checksums of its gradient: none"
    passes = min(len(each.opinions) for each in answers)
    difference = find_difference(answers)
    place = passes - 1 if difference is None else difference
    what = "its gradient" if passes == 1 else f"pass {place + 1} of {passes}"
    given = ", ".join(
        f"{each.opinions[place].worker} {each.opinions[place].crc32c:#010x}" for each in answers
    )
    return f"checksums of {what}: {given}"
