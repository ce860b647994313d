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


@dataclass
class SendProgress:
    """Weights that a worker gets, and how far they were sent.

    Attributes:
        version: version of the weights; None before the first order.
        parts: the parts of the layout that the worker loads; None for all of it.
        place: number of the plane's chunks that were sent; with parts, place of the next piece among those of the
            parts, or of one before it that is in another plane.
    """

    version: Version | None = None
    parts: LayoutParts | None = None
    place: int = 0


class PlaneCore:
    """Bookkeeping of a plane during one aggregator's session.

    Args:
        epoch: epoch of the aggregator.
        stripe: chunks that belong to this plane.

    Attributes:
        job: id of the job whose tensors are here; empty if there are none.
        elements: number of elements of the job's whole layout.
    """

    def __init__(self, epoch: int, stripe: Stripe) -> None:
        self.epoch = epoch
        self.stripe = stripe
        self.job = ""
        self.elements = 0
        self._wire = WireTypes()
        self._sends_pieces = False
        self._ready_version: Version | None = None
        self._ready_chunks = 0
        self._progress: dict[int, SendProgress] = {}  # by session of the worker

    # ---- the job ----

    def open_job(self, job: str, elements: int, wire: WireTypes, *, sends_pieces: bool = False) -> None:
        """Note that the tensors of a job are here, without weights that can be sent yet."""
        self.job, self.elements, self._wire, self._sends_pieces = job, elements, wire, sends_pieces
        self._ready_version, self._ready_chunks = None, 0
        # This job may begin at the version at which the last one ended.
        self._progress = {session: SendProgress() for session in self._progress}

    def drop_job(self) -> None:
        """Note that no tensors are here."""
        self.open_job("", 0, WireTypes())

    def weights_ready(self, job: str, version: Version, chunks: int) -> bool:
        """Note that the first chunks of a version can be sent.

        Returns:
            False if the job is no longer here.
        """
        if job != self.job:
            return False
        if version == self._ready_version:
            chunks = max(chunks, self._ready_chunks)
        self._ready_version, self._ready_chunks = version, chunks
        return True

    def remake_weights(self) -> None:
        """Note that weights are made again, and can't be sent until they are: their messages may be gone."""
        self._ready_version, self._ready_chunks = None, 0

    # ---- data streams ----

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why this plane can't take a worker's chunk; None leaves the decision to the aggregator's core."""
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, the aggregator's is {self.epoch}")
        if header.job != self.job:
            return Refusal(f"the chunk's job is {header.job!r}, the running job is {self.job or 'none'}")
        return None

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements of a job's whole layout; None if the job is not here."""
        return self.elements or None if job == self.job else None

    def wire_type(self, kind: ChunkKind) -> DType:
        """Return the wire type of chunks of this kind."""
        return self._wire.dtype_of(kind)

    def sends_pieces(self) -> bool:
        """Return whether chunks travel in pieces; the aggregator's core knows which of them a worker may send."""
        return self._sends_pieces

    def next_weights(self, session: int) -> ChunkHeader | None:
        """Return the header of the next chunk of weights for a worker, or of a piece of one; None if there is none now.

        It counts as sent.
        """
        progress = self._progress.get(session)
        if progress is None or progress.version is None or progress.version != self._ready_version:
            return None
        piece = self._next_piece(progress)
        if piece is None or self.stripe.to_local(piece.chunk) >= self._ready_chunks:
            return None
        progress.place += 1
        generation, step = progress.version
        return ChunkHeader(
            job=self.job,
            epoch=self.epoch,
            generation=generation,
            step=step,
            kind=WEIGHTS,
            index=piece.chunk,
            offset=piece.offset,
            elements=piece.elements,
            dtype=self._wire.weights,
        )

    def _next_piece(self, progress: SendProgress) -> Piece | None:
        """Return what of the plane's chunks a worker may get next; None for nothing."""
        parts = progress.parts
        if parts is None:
            index = self.stripe.to_global(progress.place)
            if index >= chunk_count(self.elements):
                return None
            start, stop = chunk_range(self.elements, index)
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
        self._progress[session] = SendProgress()

    def worker_left(self, session: int) -> None:
        """Forget a worker."""
        self._progress.pop(session, None)

    def send_version(self, session: int, version: Version, parts: LayoutParts | None = None) -> None:
        """Send a worker the plane's chunks of a version, or their pieces, from the first.

        Args:
            session: session of the worker.
            version: version of the weights.
            parts: the parts of the layout that the worker loads; None for all of it.
        """
        if session in self._progress:
            self._progress[session] = SendProgress(version, parts)
