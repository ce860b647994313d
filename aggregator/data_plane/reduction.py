"""The stored sums of an aggregator, with a kernel thread of their own. The event loop only queues orders."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aggregator.core.events import SumOrder
from plane.sums import StoredSums
from protos import plane_pb2 as pb
from services.runtime.backlog import Backlog
from services.tasks import start_call
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array


class Reduction:
    """Stored sums with a kernel thread of their own.

    Args:
        finish: called on the kernel thread with the order and the values, [elements] float32, of a finished sum.
        on_failure: called on the kernel thread with the error that ended it.
    """

    def __init__(
        self, finish: Callable[[pb.FinishSum, Float32Array], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._sums = StoredSums(finish)
        self._on_failure = on_failure
        self._kernel = ThreadPoolExecutor(1, "reduce")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[SumOrder], TensorChunk | None]] = deque()
        self._backlog = Backlog()

    def submit(self, orders: Sequence[SumOrder], chunk: TensorChunk | None) -> None:
        """Queue the orders of one input, to be carried out in order; `chunk` just arrived."""
        if not self._waiting:
            self._loop.call_soon(self._start)
        self._waiting.append((orders, chunk))
        if _costs_memory(chunk):
            self._backlog.add()

    async def wait_for_room(self) -> None:
        """Wait while too many payloads are queued; the caller must then submit its own without another await."""
        await self._backlog.wait_for_room()

    def _start(self) -> None:
        """Give the kernel thread everything that was queued in this turn of the event loop, as one task."""
        work, self._waiting = self._waiting, deque()
        start_call(self._kernel, "reduction", self._run, work)

    def close(self) -> None:
        """Stop the thread."""
        self._kernel.shutdown(cancel_futures=True)

    def _run(self, work: deque[tuple[Sequence[SumOrder], TensorChunk | None]]) -> None:
        try:
            while work:
                # Popped, so that a payload is freed as soon as its sum does not need it.
                orders, chunk = work.popleft()
                for order in orders:
                    self._carry_out(order, chunk)
                if _costs_memory(chunk):
                    self._backlog.remove()
        except Exception as error:  # must reach the event loop: nothing awaits this thread
            self._on_failure(error)

    def _carry_out(self, order: SumOrder, chunk: TensorChunk | None) -> None:
        if isinstance(order, pb.KeepPiece):
            assert chunk is not None
            self._sums.keep_piece(chunk)
        elif not isinstance(order, pb.DiscardPiece):
            self._sums.carry_out(order)


def _costs_memory(chunk: TensorChunk | None) -> bool:
    """Return whether a payload takes memory here; one in its worker's shared memory does not."""
    return chunk is not None and chunk.memory is None
