"""A worker skips weights that were overwritten, and ends its data stream at wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from plane.streams.shared_memory_link import ClientTensorLink, ServerTensorLink
from protos.tensors_pb2 import FLOAT32, WEIGHTS, ChunkHeader
from services.protocol.plan import WireTypes
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import Message, TensorChunk
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray
from services.tensors.stripes import Stripe
from services.transport.links import LinkClosed
from worker.data_stream import DataStream

LIMIT_SECONDS = 30.0
ELEMENTS = CHUNK_ELEMENTS + 1
SLOW, NEWEST = 9, 10


class Stream:
    """Call that returns these messages and then ends. Both of its ends see each other's memory."""

    def __init__(self, messages: list[Message], metadata: Any) -> None:
        self._messages = iter(messages)
        self._metadata = metadata

    async def initial_metadata(self) -> Any:
        return self._metadata

    async def read(self) -> Message | None:
        return next(self._messages, None)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


@pytest.fixture
def links() -> Iterator[tuple[ClientTensorLink, ServerTensorLink]]:
    """Link a worker and an aggregator that share memory."""
    worker = ClientTensorLink("aggregator", enabled=True, count=lambda _: None)
    aggregator = ServerTensorLink("worker", worker.metadata, enabled=True)
    with closing(worker), closing(aggregator):
        asyncio.run(worker.confirm(Stream([], aggregator.metadata)))
        yield worker, aggregator


def make_weights_header(step: int) -> ChunkHeader:
    return ChunkHeader(kind=WEIGHTS, dtype=FLOAT32, job="j", step=step)


def receive(links: tuple[ClientTensorLink, ServerTensorLink], *messages: Message) -> list[tuple[int, int]]:
    """Return step and index of the chunks that the core gets from these messages."""
    received: list[tuple[int, int]] = []

    def feed(event: Any, chunk: TensorChunk | None = None) -> None:
        received.append((event.header.step, event.header.index))

    built = SimpleNamespace(elements=ELEMENTS, wire=WireTypes(), stages=None)
    core: Any = SimpleNamespace(job=SimpleNamespace(built=built), next_chunk=lambda stripe: None)
    device: Any = SimpleNamespace(set_sharing=lambda shared: None)
    data_stream = DataStream(
        Stream(list(messages), links[1].metadata),
        links[0],
        stripe=Stripe(),
        core=core,
        device=device,
        incarnation="i",
        feed=feed,
        metrics=WorkerMetrics(),
    )
    asyncio.run(asyncio.wait_for(data_stream.run(), LIMIT_SECONDS))
    return received


def test_overwritten_weights_are_skipped(
    links: tuple[ClientTensorLink, ServerTensorLink],
) -> None:
    _, aggregator = links
    array = SharedArray(4 * ELEMENTS, 4 * CHUNK_ELEMENTS)
    messages = []
    for step in (SLOW, NEWEST):
        for index in range(2):
            array.place(index).view(np.float32)[:] = step
            array.mark(index, step)
        messages.append(aggregator.refer(make_weights_header(step), array, step, (0, 1)))
    assert receive(links, *messages) == [(NEWEST, 0), (NEWEST, 1)], "the stream goes on"


def test_wrong_weights_end_the_stream(links: tuple[ClientTensorLink, ServerTensorLink]) -> None:
    _, aggregator = links
    array = SharedArray(4 * CHUNK_ELEMENTS, 4 * CHUNK_ELEMENTS)  # memory of another layout
    array.mark(0, NEWEST)
    message = aggregator.refer(make_weights_header(NEWEST), array, NEWEST, (1,))
    with pytest.raises(LinkClosed, match=r"chunk 1\b.*\b0\b.*expected 1\b.*step 10"):
        receive(links, message)
