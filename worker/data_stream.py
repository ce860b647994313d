"""A worker's data stream: weights come down it, and the sums of its leases go up, as its core decides.

The core's bookkeeping runs on the event loop; rounding, checksums and copies of outgoing chunks on a thread of their
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protos.tensors_pb2 import ChunkHeader
from services.errors import Refused
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import WorkerMetrics
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
from services.tensors.stripes import Stripe
from services.transport.data_streams import write_message
from services.transport.links import LinkClosed, raise_call_status, run_until_first_ends
from services.transport.shared_memory_link import MAX_PLACES, ClientTensorLink
from worker.core.events import WeightsArrived
from worker.core.worker import WorkerCore
from worker.device_thread import DeviceThread
from worker.sum_memory import LeaseSum

log = logging.getLogger("tiermesh.worker")

MESSAGES_AT_ONCE = 4
"""Chunks that are made ready in one turn of the sender thread, if there are so many: each turn costs wake-ups."""


class DataStream:
    """One data stream, open.

    Args:
        stream: the gRPC call.
        link: how its payloads travel.
        stripe: which chunks go through it.
        core: decides what is sent, and takes what comes.
        device: holds the sums.
        incarnation: of this process.
        feed: gives the core an input that came with a chunk.
        metrics: of this worker.
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
        self._ahead: ChunkHeader | None = None  # taken from the core, of another lease than those before it
        self._told_too_large = ""  # the job of which it was said that float16 can't hold its gradients

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Move chunks both ways until the stream ends.

        Raises:
            grpc.aio.AioRpcError: it ended badly.
            LinkClosed: weights were refused, or the peer broke the rules of shared memory.
        """
        sender = ThreadPoolExecutor(1, "send")
        try:
            await run_until_first_ends(self._confirm(), self._take_weights(), self._send_chunks(sender))
        finally:
            sender.shutdown(wait=False, cancel_futures=True)

    async def _confirm(self) -> None:
        await self._link.confirm(self._stream)
        if self._link.shares:
            self._device.share(True)
        await asyncio.Event().wait()  # ends with the stream

    # ---- down ----

    async def _take_weights(self) -> None:
        while isinstance(message := await self._stream.read(), Message):
            try:
                self._weights_arrived(message)
            except (Refused, ValueError) as refused:
                raise LinkClosed(f"refused weights: {refused}") from None
        await raise_call_status(self._stream)

    def _weights_arrived(self, message: Message) -> None:
        for chunk in self._link.deserialize(message):
            built = self._core.job.built if self._core.job else None
            if built is None:
                return  # of a job that is over
            try:
                check_chunk(chunk, built.elements, built.wire.weights)
            except ChunkOverwritten:
                continue  # this worker is slow, no more: newer weights are on their way
            timeline.mark("receive", "weights", chunk.header.step, chunk=chunk.header.index)
            self._metrics.count_received(chunk.header.job, len(chunk.payload))
            self._feed(WeightsArrived(chunk.header), chunk)

    # ---- up ----

    async def _send_chunks(self, sender: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            headers = self._next_chunks(MAX_PLACES if self._link.shares else MESSAGES_AT_ONCE)
            if not headers:
                await self._wake.wait()
                continue
            node_sum = self._device.sum_of(headers[0].lease)
            if node_sum is None:
                continue  # dropped on the device thread before the core was told
            began = timeline.now()
            hit_failpoint("worker.send")
            for parts in await loop.run_in_executor(sender, self._messages, headers, node_sum):
                await write_message(self._stream, *parts)
            for header in headers:
                timeline.add("send", "send", began, header.step, lease=header.lease, chunk=header.index)
                self._metrics.count_sent(header.job, header.elements * bytes_per_element(header.dtype))

    def _next_chunks(self, most: int) -> list[ChunkHeader]:
        """Chunks of one lease that may go now."""
        headers: list[ChunkHeader] = []
        while len(headers) < most:
            header, self._ahead = (
                self._ahead or self._core.next_chunk(self._stripe.index, self._stripe.count),
                None,
            )
            if header is None:
                break
            if headers and header.lease != headers[0].lease:
                self._ahead = header
                break
            header.incarnation = self._incarnation
            headers.append(header)
        return headers

    def _messages(self, headers: list[ChunkHeader], node_sum: LeaseSum) -> list[tuple[Message, ...]]:
        """On the sender thread: the chunks in the wire type; one message if the aggregator sees their memory."""
        array = node_sum.shared if self._link.shares else None
        chunks = []
        for header in headers:
            place = array.place(header.index) if array is not None else None
            chunk = pack_chunk(header, header.index, node_sum.chunk(header.index), place)
            if array is not None:
                array.mark(header.index, header.lease)
            if header.job != self._told_too_large and (text := describe_float16_overflow(chunk)):
                self._told_too_large = header.job  # once a job: each such step is skipped, and told of so
                log.warning("%s", text)
            chunks.append(chunk)
        if array is None:
            return [serialize_in_parts(chunk) for chunk in chunks]
        first = chunks[0].header
        for chunk in chunks[1:]:
            first.losses.extend(chunk.header.losses)
            first.non_finite.extend(chunk.header.non_finite)
        return [(self._link.refer(first, array, first.lease, [each.header.index for each in chunks]),)]
