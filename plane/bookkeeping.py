"""A plane's bookkeeping: which chunks it takes, which weights it has, and which of them each worker gets. Pure.

The aggregator's core decides what happens to a payload. For a worker's data stream
(`plane.streams.worker_streams`), this core stands in for that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from protos.tensors_pb2 import WEIGHTS, ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import chunk_count, chunk_range
from services.tensors.layout_parts import LayoutParts, Piece
from services.tensors.stripes import Stripe

AGGREGATOR_SESSION = 0
"""Session of the aggregator in the plane of an optimizer's process, which workers don't reach."""


@dataclass
class SendProgress:
    """Weights of a job that a worker gets, and how far they were sent.

    Attributes:
        version: version of the weights.
        parts: the parts of the layout that the worker loads; None for all of it.
        place: number of the plane's chunks that were sent; with parts, place of the next piece among those of the
            parts, or of one before it that is in another plane.
    """

    version: Version
    parts: LayoutParts | None = None
    place: int = 0


@dataclass
class PlaneJob:
    """What a plane knows of a job.

    Attributes:
        elements: number of elements of the whole layout.
        wire: types in which its chunks travel.
        sends_pieces: whether they travel in pieces.
        ready_version: version of the weights that can be sent; None for none.
        ready_chunks: number of the plane's chunks that can be sent, from the first.
    """

    elements: int
    wire: WireTypes
    sends_pieces: bool
    ready_version: Version | None = None
    ready_chunks: int = 0


class PlaneCore:
    """Bookkeeping of a plane during one aggregator's session.

    Args:
        epoch: epoch of the aggregator.
        stripe: chunks that belong to this plane.
    """

    def __init__(self, epoch: int, stripe: Stripe) -> None:
        self.epoch = epoch
        self.stripe = stripe
        self._jobs: dict[str, PlaneJob] = {}
        self._progress: dict[int, dict[str, SendProgress]] = {}  # by session of the worker, and by job

    # ---- jobs ----

    @property
    def jobs(self) -> list[str]:
        """Ids of the jobs whose tensors are here, or pass through."""
        return list(self._jobs)

    def open_job(self, job: str, elements: int, wire: WireTypes, *, sends_pieces: bool = False) -> None:
        """Note that the tensors of a job are here, without weights that can be sent yet."""
        self._jobs[job] = PlaneJob(elements, wire, sends_pieces)
        self._forget_orders(job)  # the job may begin at the version at which it ended before

    def drop_job(self, job: str) -> None:
        """Note that no tensors of a job are here."""
        self._jobs.pop(job, None)
        self._forget_orders(job)

    def _forget_orders(self, job: str) -> None:
        for progress in self._progress.values():
            progress.pop(job, None)

    def weights_ready(self, job: str, version: Version, chunks: int) -> bool:
        """Note that the first chunks of a version can be sent.

        Returns:
            False if the job is no longer here.
        """
        known = self._jobs.get(job)
        if known is None:
            return False
        if version == known.ready_version:
            chunks = max(chunks, known.ready_chunks)
        known.ready_version, known.ready_chunks = version, chunks
        return True

    def remake_weights(self, job: str) -> None:
        """Note that a job's weights are made again, and can't be sent until they are: their messages may be gone."""
        if (known := self._jobs.get(job)) is not None:
            known.ready_version, known.ready_chunks = None, 0

    # ---- data streams ----

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why this plane can't take a worker's chunk; None leaves the decision to the aggregator's core."""
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, the aggregator's is {self.epoch}")
        if header.job not in self._jobs:
            here = ", ".join(self._jobs) or "none"
            return Refusal(f"the chunk's job is {header.job!r}, expected one that is here: {here}")
        return None

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements of a job's whole layout; None if the job is not here."""
        known = self._jobs.get(job)
        return None if known is None else known.elements

    def wire_type(self, job: str, kind: ChunkKind) -> DType:
        """Return the wire type of a job's chunks of this kind; the job must be here."""
        return self._jobs[job].wire.dtype_of(kind)

    def sends_pieces(self, job: str) -> bool:
        """Return whether a job's chunks travel in pieces; the aggregator's core knows which a worker may send."""
        return self._jobs[job].sends_pieces

    def next_weights(self, session: int) -> ChunkHeader | None:
        """Return the header of the next chunk of weights for a worker, or of a piece of one; None if there is none now.

        It counts as sent. An aggregator gets chunks of its jobs in turn.
        """
        orders = self._progress.get(session, {})
        for job, progress in list(orders.items()):
            header = self._next_of(job, progress)
            if header is not None:
                orders[job] = orders.pop(job)  # now the last one
                return header
        return None

    def _next_of(self, job: str, progress: SendProgress) -> ChunkHeader | None:
        known = self._jobs.get(job)
        if known is None or progress.version != known.ready_version:
            return None
        piece = self._next_piece(progress, known.elements)
        if piece is None or self.stripe.to_local(piece.chunk) >= known.ready_chunks:
            return None
        progress.place += 1
        generation, step = progress.version
        return ChunkHeader(
            job=job,
            epoch=self.epoch,
            generation=generation,
            step=step,
            kind=WEIGHTS,
            index=piece.chunk,
            offset=piece.offset,
            elements=piece.elements,
            dtype=known.wire.weights,
        )

    def _next_piece(self, progress: SendProgress, elements: int) -> Piece | None:
        """Return what of the plane's chunks of a layout a worker may get next; None for nothing."""
        parts = progress.parts
        if parts is None:
            index = self.stripe.to_global(progress.place)
            if index >= chunk_count(elements):
                return None
            start, stop = chunk_range(elements, index)
            return Piece(index, start, stop - start)
        while progress.place < len(parts):
            piece = parts[progress.place]
            if self.stripe.contains(piece.chunk):
                return piece
            progress.place += 1
        return None

    # ---- workers ----

    def worker_attends(self, session: int) -> None:
        """Note a worker whose data stream may come."""
        self._progress[session] = {}

    def worker_left(self, session: int) -> None:
        """Forget a worker."""
        self._progress.pop(session, None)

    def send_version(
        self, session: int, job: str, version: Version, parts: LayoutParts | None = None
    ) -> None:
        """Send a worker the plane's chunks of a version, or their pieces, from the first; nothing else any longer.

        Args:
            session: session of the worker; `AGGREGATOR_SESSION` for an aggregator, which goes on to get other jobs'.
            job: id of the job.
            version: version of the weights.
            parts: the parts of the layout that the worker loads; None for all of it.
        """
        orders = self._progress.get(session)
        if orders is not None:
            if session != AGGREGATOR_SESSION:
                orders.clear()
            orders[job] = SendProgress(version, parts)
