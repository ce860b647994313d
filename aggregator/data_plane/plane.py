"""Where payloads go between workers and the optimizer's tensors: through this process, or past it (shards)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from aggregator.core.aggregator import AggregatorCore
from aggregator.core.events import ChunkArrived, DataStreamOpened, SumEffect
from aggregator.data_plane.reduction import Reduction
from aggregator.data_plane.worker_streams import WorkerDataStreams
from aggregator.optimizer_link import GradientLink
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.runtime.handover import Handover
from services.runtime.metrics import AggregatorMetrics
from services.tensors.chunk_messages import Message, TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.transport.newest_weights import NewestWeights


class DataPlane(Protocol):
    """What the aggregator's service needs of whoever holds payloads; called on the event loop."""

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """A worker's data stream to this process."""

    def check_ready(self) -> Refusal | None:
        """Return why no worker can attend now; None if workers can."""

    def attends(self, session: WorkerSession) -> None:
        """A worker's control stream is up; its Welcome follows."""

    def invite(self, session: int, welcome: pb.Welcome) -> None:
        """Say in a worker's Welcome where its data streams go."""

    def left(self, session: WorkerSession, reason: str) -> None:
        """A worker's control stream is over."""

    def submit(self, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
        """Carry out effects on payloads, in order; `chunk` just arrived here, if it came here."""

    def store(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """Keep a chunk of the newest weights, and the message in which it came; None: it came from this process."""

    def wake(self) -> None:
        """There may be weights to send."""

    def close(self) -> None:
        """Stop what threads there are."""


class LocalDataPlane:
    """All payloads go through this process.

    Args:
        core: says what is stale, and what each worker is to be sent.
        newest: the weights.
        sessions: of the workers that attend.
        metrics: of this aggregator.
        feed: gives the core an input, with the chunk that came if one did.
        link: takes finished sums.
        failed: called on the kernel thread with what went wrong there.
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
        failed: Callable[[Exception], None],
        shared_memory: bool,
    ) -> None:
        self._core = core
        self._newest = newest
        self._sessions = sessions
        self._link = link
        self._prepared = Handover(link.send)
        self._reduction = Reduction(self._forward, failed)
        self._exchange = WorkerDataStreams(
            core=core,
            newest=newest,
            sessions=sessions,
            metrics=metrics,
            feed=feed,
            room=self._room,
            shared_memory=shared_memory,
        )

    async def _room(self) -> None:
        await self._link.room()
        await self._reduction.room()  # last: nothing may come between it and the chunk

    def _forward(self, header: ChunkHeader, values: Float32Array) -> None:
        """On the kernel thread: a sum is finished."""
        elements = self._core.expected_elements(header.job)
        if elements is not None:  # else its job is over
            prepared = self._link.prepare(header, values, elements)
            self._prepared.put(prepared)

    async def serve(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """One worker's stream, to its end."""
        await self._exchange.serve(requests, context)

    def check_ready(self) -> Refusal | None:
        """Return None: this process needs nothing else before workers attend."""
        return None

    def attends(self, session: WorkerSession) -> None:
        """Its data stream will name it."""

    def invite(self, session: int, welcome: pb.Welcome) -> None:
        """Data streams go where control streams go."""

    def left(self, session: WorkerSession, reason: str) -> None:
        """Its data stream ends with its mailbox."""

    def submit(self, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
        """Sums happen on the reduction's kernel thread."""
        self._reduction.submit(effects, chunk)

    def store(self, chunk: TensorChunk | None, message: Message | None, elements: int) -> None:
        """For workers to be sent; an engine in this process has put it there itself."""
        if chunk is not None:
            self._newest.keep(chunk, message, elements)

    def wake(self) -> None:
        """Have every worker's stream look for weights to send."""
        self._sessions.wake_all()

    def close(self) -> None:
        """Stop the kernel thread."""
        self._reduction.close()
