"""Payloads that wait in a plane: pieces for a decision, sums to be finished and staged.

Pieces are bounded by data stream, and by as much as a send window allows: what a window allows is always read, and a
worker that sends more holds up itself. Sums are bounded by job: a job whose work waits holds up its own data streams
alone. All methods are called on the event loop.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from services.errors import Refused
from services.protocol.plan import TOTAL_WINDOW_CHUNKS
from services.runtime.backlog import Backlog
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS

MAX_WAITING_CHUNKS = TOTAL_WINDOW_CHUNKS
"""Chunks of a data stream that may wait for a decision, and sums of a job that may wait for the kernel thread; then no
more messages are taken."""


class ArrivedPiece(NamedTuple):
    """A piece of a chunk, and the backlog that counts its elements; None if it costs no memory."""

    piece: TensorChunk
    backlog: Backlog | None

    def note_kept(self) -> None:
        """Note on the thread of sums that the piece waits no longer."""
        if self.backlog is not None:
            self.backlog.remove(self.piece.header.elements)


class FinishedSum(NamedTuple):
    """A sum, which may be added still, and the backlog that counts it; None if it does not count yet.

    Sums of this plane count once they are to be staged: those that the optimizer's core refuses must hold up nobody.
    """

    values: Future[Float32Array]
    backlog: Backlog | None


class StagedSum(NamedTuple):
    """A sum that is to be staged, None if there is none, and the backlog that counts it."""

    values: Future[Float32Array] | None
    backlog: Backlog


class WaitingPayloads:
    """What waits of all jobs. Only what waits of jobs and workers that are here is bounded."""

    def __init__(self) -> None:
        self._sums: dict[str, Backlog] = {}  # by job that is here: sums that wait for the kernel thread
        self._pieces: dict[int, Backlog] = {}  # by worker's session: elements of pieces that are not kept yet
        self._arrived: dict[int, ArrivedPiece] = {}  # by arrival, until it is decided on
        self._last_arrival = 0
        self._finished: dict[
            tuple[str, int], FinishedSum
        ] = {}  # by job and chunk, until they are to be staged
        self._unfinished: set[Future[Float32Array]] = set()  # those that are added still

    def open_job(self, job: str) -> None:
        """Begin to bound what waits of a job."""
        self._sums.setdefault(job, Backlog(MAX_WAITING_CHUNKS))

    def drop_job(self, job: str) -> None:
        """Forget a job; those who wait for room have it once what waits is staged."""
        self._sums.pop(job, None)

    def open_stream(self, session: int) -> None:
        """Begin to bound what waits of a worker."""
        self._pieces[session] = Backlog(MAX_WAITING_CHUNKS * CHUNK_ELEMENTS)

    def drop_stream(self, session: int) -> None:
        """Forget a worker that has left; its pieces are decided on."""
        self._pieces.pop(session, None)

    async def wait_for_room(self, job: str, session: int | None = None) -> None:
        """Wait while too much of a job or of a worker waits; the caller must then bring its own without another await.

        Args:
            job: id of the job.
            session: session of the worker; None for an aggregator.
        """
        backlogs = self._sums.get(job), None if session is None else self._pieces.get(session)
        for backlog in filter(None, backlogs):
            await backlog.wait_for_room()

    def close(self) -> None:
        """Forget all pieces, and end the waits for sums that will not be finished."""
        self._arrived.clear()
        self.cancel_sums()

    # ---- pieces ----

    def add_piece(self, session: int, piece: TensorChunk) -> int:
        """Take a piece that has arrived from a worker; return the id of the arrival."""
        # A payload in the worker's shared memory costs none here.
        backlog = self._pieces.get(session) if piece.memory is None else None
        if backlog is not None:
            backlog.add(piece.header.elements)
        self._last_arrival += 1
        self._arrived[self._last_arrival] = ArrivedPiece(piece, backlog)
        return self._last_arrival

    def pop_piece(self, arrival: int) -> ArrivedPiece:
        """Return a piece that is to be kept; it counts until it is told that it is.

        Raises:
            Refused: no such piece waits.
        """
        arrived = self._arrived.pop(arrival, None)
        if arrived is None:
            raise Refused(
                f"order for arrived chunk {arrival}: expected one that waits for a decision, at most "
                f"{self._last_arrival}"
            )
        return arrived

    def discard_piece(self, arrival: int) -> None:
        """Forget a piece (Refused)."""
        arrived = self.pop_piece(arrival)
        if arrived.backlog is not None:
            arrived.backlog.cancel(arrived.piece.header.elements)

    # ---- sums ----

    def put_sum(self, job: str, chunk: int, values: Float32Array) -> None:
        """Take a finished sum from another process, [elements of the chunk] float32, which the next order stages."""
        backlog = self.take_sum(job, chunk).backlog
        finished: Future[Float32Array] = Future()
        finished.set_result(values)
        self._finished[job, chunk] = FinishedSum(finished, backlog)

    def expect_sum(self, job: str, chunk: int) -> Future[Float32Array]:
        """Return the future of a sum that is to be finished here."""
        finished: Future[Float32Array] = Future()
        self._unfinished.add(finished)
        finished.add_done_callback(self._unfinished.discard)
        self._finished[job, chunk] = FinishedSum(finished, None)
        return finished

    def take_sum(self, job: str, chunk: int) -> StagedSum:
        """Return a sum that is to be staged; it counts until its backlog is told that it is."""
        found = self._finished.pop((job, chunk), None)
        backlog = None if found is None else found.backlog
        if backlog is None:
            backlog = self._sums.get(job) or Backlog(MAX_WAITING_CHUNKS)
            backlog.add()
        return StagedSum(None if found is None else found.values, backlog)

    def discard_sums(self, job: str) -> None:
        """Forget the sums of a job that were not staged: their step, or their job, is over."""
        for each in [each for each in self._finished if each[0] == job]:
            backlog = self._finished.pop(each).backlog
            if backlog is not None:
                backlog.cancel()

    def cancel_sums(self) -> None:
        """End the waits for sums that will not be finished."""
        for finished in list(self._unfinished):
            finished.cancel()
