"""State of the job that a worker has joined: whether it is built, and which weights have arrived for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.pipeline.split import StageRun
from services.protocol.versions import Version
from services.tensors.layout import chunk_count
from services.tensors.layout_parts import Piece
from worker.core.events import Built

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""Pause before a mesh that can't be opened is tried again. It doubles with each failure, up to the second number."""


MOST_REPAIRS = 3
"""Number of times that a worker fetches a damaged file of one job again. After that its disk is at fault."""


@dataclass
class JoinedJob:
    """The job that the aggregator ordered this worker to join.

    Attributes:
        job: id of the job.
        spec_json: config of the job, a `JobConfig` as JSON.
        stages: the stages of its pipeline that this worker has; None for the whole model.
        build: number of the last order to build them; 0 for the whole model.
        number: number of the last Build.
        built: the result of building it; None while it is being built.
        row: id of the row of workers that this one is in; 0 for none.
        newest_lease: id of the last lease of a row that it has accepted.
        receiving: version of the weights that arrived last.
        received: offsets in the layout of the pieces of that version that have arrived.
        loaded: version whose complete weights are on the mesh; None while newer ones arrive.
        unfit_reason: why the mesh could not be opened; empty if it was opened or not tried yet.
        attempt: number of the BuildLater that the worker waits for; 0 for none.
        repairs: number of times that a damaged file was fetched again.
    """

    job: str
    spec_json: str
    stages: StageRun | None = None
    build: int = 0
    number: int = 0
    built: Built | None = None
    row: int = 0
    newest_lease: int = 0
    receiving: Version | None = None
    received: set[int] = field(default_factory=set)
    loaded: Version | None = None
    unfit_reason: str = ""
    attempt: int = 0
    repairs: int = 0
    _pause_seconds: float = FIRST_RETRY_SECONDS

    def is_same(self, other: JoinedJob) -> bool:
        """Return whether another order to join asks for what this one did."""
        return (self.job, self.spec_json, self.stages) == (other.job, other.spec_json, other.stages)

    def is_in(self, row: int) -> bool:
        """Return whether a row's leases are for this worker; 0 is that of leases of a whole model."""
        return row == self.row and (self.stages is None) == (row == 0)

    @property
    def is_building(self) -> bool:
        """Whether the job is being built, which a worker with an unfit mesh does from time to time."""
        return self.built is None and not self.attempt

    @property
    def chunks(self) -> int:
        """Number of chunks of the layout; 0 while the job is being built."""
        return chunk_count(self.built.elements) if self.built else 0

    def note_built(self, built: Built) -> None:
        """Record that the job is on the mesh."""
        self.built = built
        self.unfit_reason, self.attempt, self._pause_seconds = "", 0, FIRST_RETRY_SECONDS

    def note_unfit(self, reason: str, attempt: int) -> float:
        """Record that the mesh can't be opened, and return the seconds until the next try."""
        self.unfit_reason, self.attempt = reason, attempt
        pause_seconds = self._pause_seconds
        self._pause_seconds = min(2 * pause_seconds, LONGEST_RETRY_SECONDS)
        return pause_seconds

    def accepts(self, header: ChunkHeader) -> bool:
        """Return whether a piece belongs to this job's weights, of a version that is not outdated."""
        if self.built is None or header.job != self.job or header.kind != WEIGHTS:
            return False
        if not self.built.loads.has(Piece(header.index, header.offset, header.elements)):
            return False
        return self.receiving is None or read_version(header) >= self.receiving

    def start_receiving(self, version: Version) -> None:
        """Forget what arrived of older weights: the mesh is about to be overwritten."""
        self.receiving, self.loaded = version, None
        self.received.clear()


def read_version(message: ChunkHeader) -> Version:
    """Return the weight version that a chunk belongs to."""
    return Version(message.generation, message.step)
