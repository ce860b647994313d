"""Payloads that wait in a plane: pieces for a decision, sums to be finished and staged. They are bounded by job.

So a job whose work waits holds up its own data streams alone. All methods are called on the event loop.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from services.errors import Refused
from services.protocol.plan import TOTAL_WINDOW_CHUNKS
from services.runtime.backlog import Backlog
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array

MAX_WAITING_CHUNKS = TOTAL_WINDOW_CHUNKS
"""Payloads of a job that may wait for a decision and for the kernel thread; then no more of its messages are taken."""


class ArrivedPiece(NamedTuple):
    """A piece of a chunk, and the backlog that counts it; None if it costs no memory."""

    piece: TensorChunk
    backlog: Backlog | None


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


class _JobBacklogs:
    """Counts of what waits of one job.

    Attributes:
        pieces: pieces that are not kept yet.
        sums: finished sums that wait for the kernel thread.
    """

    def __init__(self) -> None:
        self.pieces = Backlog(MAX_WAITING_CHUNKS)
        self.sums = Backlog(MAX_WAITING_CHUNKS)


class WaitingPayloads:
    """What waits of all jobs. Only what waits of jobs that are here is bounded."""

    def __init__(self) -> None:
        self._backlogs: dict[str, _JobBacklogs] = {}  # of the jobs that are here
        self._arrived: dict[int, ArrivedPiece] = {}  # by arrival, until it is decided on
        self._last_arrival = 0
        self._finished: dict[
            tuple[str, int], FinishedSum
        ] = {}  # by job and chunk, until they are to be staged
        self._unfinished: set[Future[Float32Array]] = set()  # those that are added still

    def open_job(self, job: str) -> None:
        """Begin to bound what waits of a job."""
        self._backlogs.setdefault(job, _JobBacklogs())

    def drop_job(self, job: str) -> None:
        """Forget a job; those who wait for room have it once what waits is decided on."""
        self._backlogs.pop(job, None)

    def _of(self, job: str) -> _JobBacklogs:
        return self._backlogs.get(job) or _JobBacklogs()

    async def wait_for_room(self, job: str) -> None:
        """Wait while too much of a job waits; the caller must then bring its own without another await."""
        backlogs = self._of(job)
        await backlogs.sums.wait_for_room()
        await backlogs.pieces.wait_for_room()

    def close(self) -> None:
        """Forget all pieces, and end the waits for sums that will not be finished."""
        self._arrived.clear()
        self.cancel_sums()

    # ---- pieces ----

    def add_piece(self, piece: TensorChunk) -> int:
        """Take a piece that has arrived; return the id of the arrival."""
        backlog = None
        if piece.memory is None:  # else its payload stays in the worker's shared memory
            backlog = self._of(piece.header.job).pieces
            backlog.add()
        self._last_arrival += 1
        self._arrived[self._last_arrival] = ArrivedPiece(piece, backlog)
        return self._last_arrival

    def pop_piece(self, arrival: int) -> ArrivedPiece:
        """Return a piece that is to be kept; it counts until its backlog is told that it is.

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
        backlog = self.pop_piece(arrival).backlog
        if backlog is not None:
            backlog.cancel()

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
            backlog = self._of(job).sums
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
