"""A worker's data stream: weights arrive on it, and the sums of its leases leave on it, as its core decides.

The core's bookkeeping runs on the event loop. A thread of its own rounds outgoing chunks, copies them and computes
their checksums.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from plane.streams.data_streams import write_message
from plane.streams.shared_memory_link import MAX_PLACES, ClientTensorLink
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refused
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import WorkerMetrics
from services.tasks import call_in
from services.tensors.chunk_messages import (
    ChunkOverwritten,
    Message,
    TensorChunk,
    bytes_per_element,
    check_chunk,
    describe_float16_overflow,
    pack_chunk,
    serialize_in_parts,
)
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray
from services.tensors.stripes import Stripe
from services.transport.links import LinkClosed, raise_call_status, run_until_first_ends
from worker.core.events import WeightsArrived
from worker.core.worker import WorkerCore
from worker.device_thread import DeviceThread
from worker.sum_memory import LeaseSum

log = logging.getLogger("tiermesh.worker")

MESSAGES_AT_ONCE = 4
"""Maximum number of chunks that the sender thread prepares at once. Each of its turns costs wake-ups."""


class DataStream:
    """One open data stream.

    Args:
        stream: the gRPC call.
        link: link to the aggregator, which moves payloads in messages or through shared memory.
        stripe: the chunks that travel on this stream.
        core: the worker's core, which decides which chunks are sent.
        device: the device thread, which has the sums of leases.
        incarnation: id of this process.
        feed: callback that passes the core an input and the chunk it came with.
        metrics: metrics of this worker.
    """

    def __init__(
        self,
        stream: Any,
        link: ClientTensorLink,
        *,
        stripe: Stripe,
        core: WorkerCore,
        device: DeviceThread,
        incarnation: str,
        feed: Callable[[WeightsArrived, TensorChunk], None],
        metrics: WorkerMetrics,
    ) -> None:
        self._stream = stream
        self._link = link
        self._stripe = stripe
        self._core = core
        self._device = device
        self._incarnation = incarnation
        self._feed = feed
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._next_header: ChunkHeader | None = None  # taken from the core, to be sent in the next turn
        self._overflow_logged = ""  # job whose overflow of float16 has been logged

    def wake(self) -> None:
        """Ask the core for chunks to send."""
        self._wake.set()

    async def run(self) -> None:
        """Move chunks both ways until the stream ends.

        Raises:
            grpc.aio.AioRpcError: the stream broke.
            LinkClosed: weights were refused, or the peer broke the protocol of shared memory.
        """
        sender = ThreadPoolExecutor(1, "send")
        try:
            await run_until_first_ends(
                self._confirm_shared_memory(), self._receive_weights(), self._send_chunks(sender)
            )
        finally:
            sender.shutdown(wait=False, cancel_futures=True)

    async def _confirm_shared_memory(self) -> None:
        await self._link.confirm(self._stream)
        if self._link.shares:
            self._device.set_sharing(True)
        await asyncio.Event().wait()  # until the stream ends

    # ---- weights ----

    async def _receive_weights(self) -> None:
        while isinstance(message := await self._stream.read(), Message):
            try:
                self._take_weights(message)
            except (Refused, ValueError) as refused:
                raise LinkClosed(f"refused weights: {refused}") from None
        await raise_call_status(self._stream)

    def _take_weights(self, message: Message) -> None:
        for chunk in self._link.deserialize(message):
            built = self._core.job.built if self._core.job else None
            if built is None:
                return  # the job has ended
            try:
                pieces = built.stages is not None
                check_chunk(chunk, built.elements, built.wire.weights, pieces=pieces)
            except ChunkOverwritten:
                continue  # newer weights have overwritten it and are on their way
            timeline.mark("receive", "weights", chunk.header.step, chunk=chunk.header.index)
            self._metrics.count_received(chunk.header.job, len(chunk.payload))
            self._feed(WeightsArrived(chunk.header), chunk)

    # ---- gradients ----

    async def _send_chunks(self, sender: ThreadPoolExecutor) -> None:
        while True:
            self._wake.clear()
            headers = self._next_chunks(MAX_PLACES if self._link.shares else MESSAGES_AT_ONCE)
            if not headers:
                await self._wake.wait()
                continue
            lease_sum = self._device.find_sum(headers[0].lease)
            if lease_sum is None:
                continue  # the device thread has freed it; the core drops the lease next
            began = timeline.now()
            hit_failpoint("worker.send")
            for parts in await call_in(sender, self._make_messages, headers, lease_sum):
                await write_message(self._stream, *parts)
            for header in headers:
                timeline.add("send", "send", began, header.step, lease=header.lease, chunk=header.index)
                self._metrics.count_sent(header.job, header.elements * bytes_per_element(header.dtype))

    def _next_chunks(self, max_count: int) -> list[ChunkHeader]:
        """Take headers of one lease's chunks from the core, as many as may be sent now."""
        headers: list[ChunkHeader] = []
        while len(headers) < max_count:
            header = self._next_header or self._core.next_chunk(self._stripe)
            self._next_header = None
            if header is None:
                break
            if headers and header.lease != headers[0].lease:
                self._next_header = header
                break
            header.incarnation = self._incarnation
            headers.append(header)
        return headers

    def _make_messages(self, headers: list[ChunkHeader], lease_sum: LeaseSum) -> list[tuple[Message, ...]]:
        """Return messages with the chunks in the wire type: one for all of them if the aggregator sees their memory.

        Runs on the sender thread.
        """
        array = lease_sum.shared if self._link.shares else None
        chunks = []
        for header in headers:
            position, place = lease_sum.position(header.offset), None
            if array is not None:
                size = bytes_per_element(header.dtype)
                place = array.payload[position * size : (position + header.elements) * size]
            values = lease_sum.piece(header.offset, header.elements)
            chunk = pack_chunk(header, header.index, values, place)
            chunk.header.offset = header.offset
            if array is not None:
                array.mark(position // CHUNK_ELEMENTS, header.lease)
            if header.job != self._overflow_logged and (text := describe_float16_overflow(chunk)):
                self._overflow_logged = header.job  # once per job: each such step is reported as skipped
                log.warning("%s", text)
            chunks.append(chunk)
        if array is None:
            return [serialize_in_parts(chunk) for chunk in chunks]
        runs = _split_at_pieces(chunks) if lease_sum.in_row else [chunks]
        return [(self._refer(run, array, lease_sum),) for run in runs]

    def _refer(self, chunks: Sequence[TensorChunk], array: SharedArray, lease_sum: LeaseSum) -> Message:
        """Return a message that refers to chunks in shared memory."""
        headers = [chunk.header for chunk in chunks]
        first = headers[0]
        for header in headers[1:]:
            first.findings.MergeFrom(header.findings)
        positions = [lease_sum.position(each.offset) for each in headers] if lease_sum.in_row else []
        return self._link.refer(first, array, first.lease, [each.index for each in headers], positions)


def _split_at_pieces(chunks: Sequence[TensorChunk]) -> list[list[TensorChunk]]:
    """Return runs of chunks of which only the first may be a piece, since a message describes one piece at most."""
    runs: list[list[TensorChunk]] = []
    for chunk in chunks:
        if not runs or chunk.header.elements < CHUNK_ELEMENTS:
            runs.append([])
        runs[-1].append(chunk)
    return runs
