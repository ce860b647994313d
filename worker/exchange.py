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
from services import timeline
from services.errors import Refused
from services.metrics import WorkerMetrics
from services.streams import LinkClosed, raise_status, until_first_ends
from services.tensors.kernels import Float32Array
from services.tensors.same_host import OfferedLink
from services.tensors.stripes import Stripe
from services.tensors.wire import TensorChunk, check, pack, too_large
from worker.core import WorkerCore
from worker.device import DeviceThread
from worker.events import WeightsArrived

log = logging.getLogger("tiermesh.worker")


class Exchange:
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
        link: OfferedLink,
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
            await until_first_ends(
                self._link.confirm(self._stream), self._take_weights(), self._send_chunks(sender)
            )
        finally:
            sender.shutdown(wait=False, cancel_futures=True)

    # ---- down ----

    async def _take_weights(self) -> None:
        while isinstance(message := await self._stream.read(), bytes):
            try:
                self._weights_arrived(self._link.deserialize(message))
            except (Refused, ValueError) as refused:
                raise LinkClosed(f"refused weights: {refused}") from None
        await raise_status(self._stream)

    def _weights_arrived(self, chunk: TensorChunk) -> None:
        built = self._core.job.built if self._core.job else None
        if built is None:
            return  # of a job that is over
        check(chunk, built.elements, built.wire.weights)
        timeline.mark("receive", "weights", chunk.header.step, chunk=chunk.header.index)
        self._metrics.received(chunk.header.job, len(chunk.payload))
        self._feed(WeightsArrived(chunk.header), chunk)

    # ---- up ----

    async def _send_chunks(self, sender: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            header = self._core.next_chunk(self._stripe.index, self._stripe.count)
            if header is None:
                await self._wake.wait()
                continue
            values = self._device.values(header.lease, header.index)
            if values is None:
                continue  # dropped on the device thread before the core was told
            began = timeline.now()
            slot = await self._link.free_slot()
            message, payload_bytes = await loop.run_in_executor(sender, self._message, slot, header, values)
            await self._stream.write(message)
            timeline.add("send", "send", began, header.step, lease=header.lease, chunk=header.index)
            self._metrics.sent(header.job, payload_bytes)

    def _message(self, slot: int | None, header: ChunkHeader, values: Float32Array) -> tuple[bytes, int]:
        header.incarnation = self._incarnation
        chunk = pack(header, header.index, values, checksum=slot is None)
        if header.job != self._told_too_large and (text := too_large(chunk)):
            self._told_too_large = header.job  # once a job: each such step is skipped, and told of as such
            log.warning("%s", text)
        return self._link.serialize(chunk, slot), len(chunk.payload)
