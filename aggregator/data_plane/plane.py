"""The path of payloads between workers and the optimizer's tensors: through this process, or through shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from aggregator.core.aggregator import AggregatorCore
from aggregator.core.events import ChunkArrived, DataStreamOpened, SumOrder
from aggregator.data_plane.reduction import Reduction
from aggregator.data_plane.worker_streams import WorkerDataStreams
from aggregator.optimizer_links.link import GradientLink
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from protos import plane_pb2
from services.errors import Refusal
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.handover import Handover
from services.tensors.chunk_messages import Message, TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.transport.data.newest_weights import NewestWeights


class DataPlane(Protocol):
    """The data plane as the aggregator's service uses it; all methods are called on the event loop."""

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve a worker's data stream to this process."""

    def check_ready(self) -> Refusal | None:
        """Return why no worker can attend now; None if workers can."""

    def worker_connected(self, session: WorkerSession) -> None:
        """Prepare for a worker whose control stream is up; its Welcome follows."""

    def fill_welcome(self, session: int, welcome: pb.Welcome) -> None:
        """Put the addresses for a worker's data streams into its Welcome."""

    def worker_lost(self, session: WorkerSession, reason: str) -> None:
        """Forget a worker whose control stream has ended."""

    def submit(self, orders: Sequence[SumOrder], chunk: TensorChunk | None) -> None:
        """Carry out orders on payloads, in their sequence.

        Args:
            orders: the orders.
            chunk: the chunk that just arrived; None if none arrived in this process.
        """

    def store_weights(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """Store a chunk of the newest weights.

        Args:
            chunk: the chunk; None if the optimizer in this process has stored it already.
            message: the message it came in; None if it came in shared memory or from this process.
            elements: the number of elements in the whole layout.
        """

    def wake_senders(self) -> None:
        """Have the data streams look for weights to send."""

    def close(self) -> None:
        """Stop all threads."""


class LocalDataPlane:
    """A data plane in which all payloads go through this process.

    Args:
        core: says which chunks are stale, and which each worker is sent next.
        newest: the newest weights.
        sessions: the sessions of the connected workers.
        metrics: the aggregator's metrics.
        feed: gives the core an input, with the chunk that arrived if one did.
        link: takes finished sums.
        on_failure: called on the kernel thread with the error that ended it.
        shared_memory: whether payloads may go through memory shared with a worker.
    """

    def __init__(
        self,
        *,
        core: AggregatorCore,
        newest: NewestWeights,
        sessions: WorkerSessions,
        metrics: AggregatorMetrics,
        feed: Callable[[DataStreamOpened | ChunkArrived, TensorChunk | None], None],
        link: GradientLink,
        on_failure: Callable[[Exception], None],
        shared_memory: bool,
    ) -> None:
        self._core = core
        self._newest = newest
        self._sessions = sessions
        self._link = link
        self._prepared = Handover(link.send)
        self._reduction = Reduction(self._finish, on_failure)
        self._data_streams = WorkerDataStreams(
            core=core,
            newest=newest,
            sessions=sessions,
            metrics=metrics,
            feed=feed,
            wait_for_room=self._wait_for_room,
            shared_memory=shared_memory,
        )

    async def _wait_for_room(self) -> None:
        await self._link.wait_for_room()
        await self._reduction.wait_for_room()  # last: nothing may run between it and taking the chunk

    def _finish(self, order: plane_pb2.FinishSum, values: Float32Array) -> None:
        """Hand a finished sum over to the event loop; called on the kernel thread."""
        elements = self._core.expected_elements(order.job)
        if elements is not None:  # None if the job is over
            prepared = self._link.prepare(order.header, values, elements)
            self._prepared.put(prepared)

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one worker's data stream until it ends."""
        await self._data_streams.serve(requests, context)

    def check_ready(self) -> Refusal | None:
        """Return None: this process needs nothing else before workers attend."""
        return None

    def worker_connected(self, session: WorkerSession) -> None:
        """Do nothing: a data stream names its worker itself."""

    def fill_welcome(self, session: int, welcome: pb.Welcome) -> None:
        """Do nothing: data streams come to this process, like control streams."""

    def worker_lost(self, session: WorkerSession, reason: str) -> None:
        """Do nothing: the data stream ends when the session's mailbox is closed."""

    def submit(self, orders: Sequence[SumOrder], chunk: TensorChunk | None) -> None:
        """Queue orders for the reduction's kernel thread."""
        self._reduction.submit(orders, chunk)

    def store_weights(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """Store a chunk of weights, unless the engine in this process has stored it already."""
        if chunk is not None:
            self._newest.put_received(chunk, message, elements)

    def wake_senders(self) -> None:
        """Have every worker's data stream look for weights to send."""
        self._sessions.wake_all()

    def close(self) -> None:
        """Stop the kernel thread."""
        self._reduction.close()
