"""The division of a pipeline's stages among workers: which workers make a row, and which are spares.

W workers and p stages make W // p rows with a worker for each stage. With fewer workers than stages there is one row,
whose workers share the stages once no more workers are waited for. Workers keep their stages as far as the rules
allow, since a worker with other stages has to build its model again, and to receive its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from services.pipeline.split import StageRun


class Seat(NamedTuple):
    """The neighbouring stages that a worker has in a row.

    Attributes:
        worker: session of the worker.
        stages: its stages.
    """

    worker: int
    stages: StageRun


Seats: TypeAlias = tuple[Seat, ...]
"""The workers of a row, in the order of their stages."""


@dataclass(frozen=True)
class Candidate:
    """A worker that may be given stages.

    Attributes:
        worker: its session.
        most_stages: number of stages that fit its mesh, as far as it is known; at least 1.
        built: stages that it has built; None for none. It gets them again if they are free.
        patient: whether it gets no others, since workers are still coming that it may make a row with.
    """

    worker: int
    most_stages: int
    built: StageRun | None = None
    patient: bool = False


def form_rows(
    stages: int, candidates: Sequence[Candidate], former: Iterable[Seats], *, shares: bool
) -> list[Seats]:
    """Divide the stages of a pipeline among workers.

    A row whose workers are all there stays as it is, unless one of them has several stages: then a further worker takes
    over half of the longest run. A spare is used before anything is shared. A lost worker's stages go to its
    neighbours, unless an even division of all stages is better: then each worker may have to build others.

    Args:
        stages: number of stages.
        candidates: the workers, the preferred ones first.
        former: the rows so far, of which workers may be gone.
        shares: whether a worker may be given several stages.

    Returns:
        The rows. If there is only one, it may lack stages: they may not be shared, or fit none of the workers.
    """
    known = {each.worker: each for each in candidates}
    wanted = max(1, len(known) // stages) if known else 0
    kept = [without_lost(seats, known) for seats in former]
    whole_first = sorted((each for each in kept if each), key=lambda seats: -_held(seats))  # stable
    rows = [_Row(stages, known, seats) for seats in whole_first[:wanted]]
    rows += [_Row(stages, known, ()) for _ in range(wanted - len(rows))]
    seated = {seat.worker for row in rows for seat in row.seats}
    spares = [each for each in candidates if each.worker not in seated]
    for row in rows:
        row.seat_again(spares)
    spares = [each for each in spares if not each.patient]
    for row in rows:
        row.fill(spares, shares=shares)
    return [tuple(row.seats) for row in rows]


def find_gaps(stages: int, seats: Iterable[Seat]) -> list[StageRun]:
    """Return the runs of stages that no worker of a row has, in order."""
    gaps, stop = [], 0
    for seat in seats:
        if seat.stages.first > stop:
            gaps.append(StageRun(stop, seat.stages.first - stop))
        stop = seat.stages.stop
    if stop < stages:
        gaps.append(StageRun(stop, stages - stop))
    return gaps


def without_lost(seats: Seats, known: dict[int, Candidate]) -> Seats:
    """Return the seats of workers that are still there and that their stages still fit."""
    return tuple(
        seat for seat in seats if seat.worker in known and seat.stages.count <= known[seat.worker].most_stages
    )


def _held(seats: Seats) -> int:
    return sum(seat.stages.count for seat in seats)


def _stage_count(seat: Seat) -> int:
    return seat.stages.count


class _Row:
    """A row that is being filled."""

    def __init__(self, stages: int, known: dict[int, Candidate], seats: Seats) -> None:
        self.seats = list(seats)
        self._stages = stages
        self._known = known

    def seat_again(self, spares: list[Candidate]) -> None:
        """Give spares the stages that they have built, where those are free."""
        for spare in list(spares):
            built = spare.built
            if built is None or built.count > spare.most_stages:
                continue
            if any(map(built.is_in, find_gaps(self._stages, self.seats))):
                self._seat(spare, built)
                spares.remove(spare)

    def fill(self, spares: list[Candidate], *, shares: bool) -> None:
        """Give spares the stages that the row lacks, and relieve workers of several; without spares, share stages."""
        while spares and (gaps := find_gaps(self._stages, self.seats)):
            self._seat(spares.pop(0), StageRun(max(gaps, key=lambda each: each.count).first, 1))
        while spares and (longest := max(self.seats, key=_stage_count)).stages.count > 1:
            self._split(longest, spares.pop(0))
        if shares and find_gaps(self._stages, self.seats):
            self._extend_neighbours()
            even = -(-self._stages // len(self.seats))
            if find_gaps(self._stages, self.seats) or max(map(_stage_count, self.seats)) > even:
                self._divide_again()

    def _seat(self, spare: Candidate, stages: StageRun) -> None:
        self.seats.append(Seat(spare.worker, stages))
        self.seats.sort(key=lambda seat: seat.stages.first)

    def _split(self, seat: Seat, spare: Candidate) -> None:
        """Let a spare take over the later half of a worker's stages."""
        given = min(seat.stages.count // 2, spare.most_stages)
        left = seat.stages.count - given
        self.seats[self.seats.index(seat)] = seat._replace(stages=StageRun(seat.stages.first, left))
        self._seat(spare, StageRun(seat.stages.first + left, given))

    def _extend_neighbours(self) -> None:
        """Let the neighbours of stages that no worker has take them, the one with fewer stages first."""
        while gaps := find_gaps(self._stages, self.seats):
            gap = gaps[0]
            beside = [
                each
                for each in self.seats
                if gap.first == each.stages.stop or gap.stop == each.stages.first
                if each.stages.count < self._known[each.worker].most_stages
            ]
            if not beside:
                return
            seat = min(beside, key=_stage_count)
            first = seat.stages.first - (seat.stages.first > gap.first)
            extended = StageRun(first, seat.stages.count + 1)
            self.seats[self.seats.index(seat)] = seat._replace(stages=extended)

    def _divide_again(self) -> None:
        """Divide all stages among the row's workers again, if they fit at all."""
        workers = [self._known[seat.worker] for seat in self.seats]
        if sum(each.most_stages for each in workers) < self._stages:
            return
        self.seats.clear()
        first = 0
        for place, each in enumerate(workers):
            left = self._stages - first
            later = workers[place + 1 :]
            even = -(-left // (len(later) + 1))
            least = left - sum(other.most_stages for other in later)
            count = min(max(even, least), each.most_stages, left - len(later))
            self.seats.append(Seat(each.worker, StageRun(first, count)))
            first += count
