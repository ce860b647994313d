"""The workers of a row, as one of them sees them: which are its neighbours, and which has a range."""

from __future__ import annotations

from dataclasses import dataclass

from protos import cluster_pb2 as pb
from services.errors import Refused
from services.pipeline.row_ids import describe_row
from services.pipeline.split import StageRun
from services.transport.addresses import split_address


@dataclass(frozen=True)
class Place:
    """A worker of a row.

    Attributes:
        name: its name.
        incarnation: id of its process start.
        address: `HOST:PORT` at which the other workers reach it; empty if it has all stages, and they can't.
        stages: its stages.
    """

    name: str
    incarnation: str
    address: str
    stages: StageRun

    def __str__(self) -> str:
        return f"worker {self.name} ({self.stages})"


@dataclass(frozen=True)
class RowPlaces:
    """The workers of a row, which together have all stages.

    Attributes:
        job: id of the job.
        row: id of the row.
        epoch: epoch of the aggregator that formed it.
        places: the workers, in the order of their stages.
        own: the worker that this process is.
    """

    job: str
    row: int
    epoch: int
    places: tuple[Place, ...]
    own: Place

    @classmethod
    def read(cls, row: pb.Row, epoch: int, incarnation: str) -> RowPlaces:
        """Return the workers that the aggregator names.

        Args:
            row: the aggregator's message.
            epoch: its epoch.
            incarnation: id of this process start.

        Raises:
            Refused: stages have no worker, or two; another worker's address is none; or this process has no stages.
        """
        what = f"{describe_row(row.row)} of job {row.job}"
        places, first = [], 0
        for seat in row.seats:
            if seat.first_stage != first or not seat.stages:
                raise Refused(
                    f"{what}: {seat.stages} stages from {seat.first_stage} on for {seat.name}, expected 1 or more from "
                    f"{first} on, as each stage has one worker"
                )
            if seat.incarnation != incarnation:
                split_address(f"{what}: address of {seat.name}", seat.address)
            places.append(
                Place(seat.name, seat.incarnation, seat.address, StageRun(seat.first_stage, seat.stages))
            )
            first += seat.stages
        own = [each for each in places if each.incarnation == incarnation]
        if len(own) != 1:
            raise Refused(f"{what}: {len(own)} seats for this worker, expected 1")
        return cls(row.job, row.row, epoch, tuple(places), own[0])

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.places[-1].stages.stop

    @property
    def neighbours(self) -> tuple[Place, ...]:
        """The workers before and after this one; the first and the last one are neighbours too."""
        index, count = self.places.index(self.own), len(self.places)
        around = {(index - 1) % count, (index + 1) % count} - {index}
        return tuple(self.places[each] for each in sorted(around))

    def opens_to(self, neighbour: Place) -> bool:
        """Return whether this worker opens the stream between the two: the one with the later stages does."""
        return neighbour.stages.first < self.own.stages.first

    def of_stage(self, stage: int) -> Place:
        """Return the worker that has a stage."""
        return next(each for each in self.places if stage < each.stages.stop)
