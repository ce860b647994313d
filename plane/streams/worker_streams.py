"""The workers' data streams: they bring the gradients of leases, and take the newest weights to the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import grpc

from plane.streams.data_streams import write_message
from plane.streams.exchange_server import ExchangeServer
from plane.streams.newest_weights import NewestWeights
from plane.streams.shared_memory_link import ServerTensorLink
from plane.streams.worker_sessions import WorkerSession
from protos.tensors_pb2 import ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.instrumentation import timeline
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tensors.chunk_messages import TensorChunk, bytes_per_element, check_chunk

CHUNKS_PER_MESSAGE = 16
"""Chunks of weights in shared memory that one message names; few, so that a worker can soon begin with them."""
GATHER_SECONDS = 0.002
"""Time to wait for more such chunks; if none come, they arrive over a network, and waiting does not pay."""


class StreamCore(Protocol):
    """The questions of a data stream, which the bookkeeping of its plane answers."""

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker's chunk is stale; None if it is wanted."""

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements in the job's layout; None if it is unknown here."""

    def wire_type(self, job: str, kind: ChunkKind) -> DType:
        """Return the type in which a job's chunks of this kind travel."""

    def sends_pieces(self, job: str) -> bool:
        """Return whether a job's chunks travel in pieces, since workers have stages of its model."""

    def next_weights(self, session: int) -> ChunkHeader | None:
        """Return the header of the next chunk of weights for a worker, or of a piece of one; None if there is none now.

        It counts as sent.
        """


class WorkerDataStreams:
    """Serves `tiermesh.Cluster/Exchange`.

    Args:
        core: says which chunks are stale, and which each worker is sent next.
        newest: the newest weights.
        metrics: the aggregator's metrics.
        opened: called with a worker's session when its data stream is open.
        arrived: called with a worker's session and the piece of a chunk that has arrived.
        wait_for_room: waits until few enough payloads of a job and of a worker's session wait to take another one.
        shared_memory: whether payloads may stay in memory shared with a worker.
    """

    def __init__(
        self,
        *,
        core: StreamCore,
        newest: NewestWeights,
        metrics: AggregatorMetrics,
        opened: Callable[[int], None],
        arrived: Callable[[int, TensorChunk], None],
        wait_for_room: Callable[[str, int], Awaitable[None]],
        shared_memory: bool,
    ) -> None:
        self._core = core
        self._newest = newest
        self._metrics = metrics
        self._opened = opened
        self._arrived = arrived
        self._wait_for_room = wait_for_room
        self._server = ExchangeServer(
            newest, shared_memory=shared_memory, count=metrics.change_shared_memory_links
        )

    async def serve(self, session: WorkerSession, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one worker's data stream until it ends."""
        await self._server.serve(
            context,
            f"worker {session.name}",
            session.mailbox,
            wait_for_room=lambda job: self._wait_for_room(job, session.number),
            take=partial(self._chunks_arrived, session),
            send=partial(self._send, session, context),
            opened=partial(self._opened, session.number),
        )

    def _chunks_arrived(self, session: WorkerSession, chunks: list[TensorChunk]) -> Refusal | None:
        """Take the chunks of one message; return why the first stale one is stale, if there is one."""
        refusals = [self._chunk_arrived(session, chunk) for chunk in chunks]
        accepted = (chunk for chunk, refusal in zip(chunks, refusals, strict=True) if refusal is None)
        accepted_bytes = sum(len(chunk.payload) for chunk in accepted)
        if accepted_bytes:
            self._metrics.count_received(chunks[0].header.job, accepted_bytes)
        return next(filter(None, refusals), None)

    def _chunk_arrived(self, session: WorkerSession, chunk: TensorChunk) -> Refusal | None:
        """Take a chunk, or return why it is stale."""
        refusal = self._core.check_chunk(session.number, chunk.header)
        elements = self._core.expected_elements(chunk.header.job)
        # A chunk that comes before the layout is known here is dropped; its worker is asked for it again.
        if refusal is None and elements is not None:
            header = chunk.header
            wire_type = self._core.wire_type(header.job, header.kind)
            check_chunk(chunk, elements, wire_type, pieces=self._core.sends_pieces(header.job))
            of_lease: dict[str, Any] = {"lease": header.lease, "chunk": header.index}
            timeline.mark(f"from {session.name}", "gradient", header.step, job=header.job, **of_lease)
            self._arrived(session.number, chunk)
        return refusal

    async def _send(
        self, session: WorkerSession, context: grpc.aio.ServicerContext[Any, Any], link: ServerTensorLink
    ) -> None:
        headers: list[ChunkHeader] = []
        while True:
            session.wake.clear()
            self._next_weights(session, headers, CHUNKS_PER_MESSAGE if link.shares else 1)
            if not headers:
                await session.wake.wait()
                continue
            if link.shares and not self._is_worth_a_message(headers) and await _more_may_come(session):
                continue
            began = timeline.now()
            await self._newest.send(link, headers, partial(write_message, context))
            for header in headers:
                facts: dict[str, Any] = {"worker": session.name, "chunk": header.index}
                timeline.add(f"to {session.name}", "send", began, header.step, job=header.job, **facts)
                self._metrics.count_sent(header.job, header.elements * bytes_per_element(header.dtype))
            headers.clear()

    def _next_weights(self, session: WorkerSession, headers: list[ChunkHeader], most: int) -> None:
        """Add the headers of the chunks that a worker is sent next, up to `most` in all."""
        while len(headers) < most:
            header = self._core.next_weights(session.number)
            if header is None:
                return
            headers.append(header)

    def _is_worth_a_message(self, headers: list[ChunkHeader]) -> bool:
        """Return whether the message is full or the last one: in shared memory a message costs more than a chunk."""
        elements = self._core.expected_elements(headers[-1].job)
        return (
            len(headers) == CHUNKS_PER_MESSAGE
            or elements is None
            or self._newest.is_last(headers[-1].index, elements)
        )


async def _more_may_come(session: WorkerSession) -> bool:
    """Wait for more weights to send, and return whether there may be some."""
    try:
        await asyncio.wait_for(session.wake.wait(), GATHER_SECONDS)
    except asyncio.TimeoutError:
        return False
    return True
