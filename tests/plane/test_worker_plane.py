"""A worker's plane sends the pieces that are ordered, takes the job's weights, and ends with any of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from plane.streams.shared_memory_link import ServerTensorLink
from plane.worker_plane import WorkerPlane
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, WEIGHTS, ChunkHeader
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import Message, TensorChunk
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.shared_memory import SharedArray
from services.transport.links import LinkClosed

LIMIT_SECONDS = 30.0
ELEMENTS = 2 * CHUNK_ELEMENTS + 1
WHOLE = LayoutParts([(0, ELEMENTS)])
SLOW, NEWEST = 9, 10


class Expected:
    """A number of chunks that peers wait for together."""

    def __init__(self, chunks: int) -> None:
        self._missing = chunks
        self.all_here = asyncio.Event()
        self.note(0)

    def note(self, chunks: int) -> None:
        """Note chunks that have arrived."""
        self._missing -= chunks
        if not self._missing:
            self.all_here.set()


class Peer:
    """The other end of a data stream, which sees the worker's memory: it sends messages, waits for chunks, and ends.

    Attributes:
        link: its link.
        sent: leases and indices of the chunks that the worker has sent.
    """

    def __init__(self, expected: Expected, messages: Sequence[Message] = ()) -> None:
        self.link: ServerTensorLink
        self.sent: list[tuple[int, int]] = []
        self._expected = expected
        self._messages = iter(messages)

    async def initial_metadata(self) -> Any:
        return self.link.metadata

    async def read(self) -> Message | None:
        message = next(self._messages, None)
        if message is None:
            await self._expected.all_here.wait()
        return message

    async def write(self, message: Message) -> None:
        chunks = self.link.deserialize(message)
        self.sent += [(each.header.lease, each.header.index) for each in chunks]
        self._expected.note(len(chunks))

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


class Connector:
    """Opens streams to peers, by address."""

    def __init__(self, peers: dict[str, Peer]) -> None:
        self.peers = peers

    @asynccontextmanager
    async def open(self, address: str, tensor_port: int, metadata: Any) -> AsyncIterator[Peer]:
        peer = self.peers[address]
        peer.link = ServerTensorLink("worker", metadata, enabled=True)
        yield peer
        peer.link.close()


class Worker:
    """A plane with a job.

    Attributes:
        plane: the plane.
        arrived: step and index of the chunks of weights that it has reported.
        opened: an entry for each time that it has reported open streams.
    """

    def __init__(self, peers: dict[str, Peer]) -> None:
        connector: Any = Connector(peers)
        self.arrived: list[tuple[int, int]] = []
        self.opened: asyncio.Queue[None] = asyncio.Queue()
        self.plane = WorkerPlane(
            connector,
            shared_memory=True,
            incarnation="i",
            arrived=self._arrived,
            opened=lambda: self.opened.put_nowait(None),
            metrics=WorkerMetrics(),
        )
        self.plane.carry_out(
            pb.PassJob(
                job="j", elements=ELEMENTS, gradients=FLOAT32, weights=FLOAT32, parts=WHOLE.to_messages()
            )
        )

    def _arrived(self, chunk: TensorChunk) -> None:
        self.arrived.append((chunk.header.step, chunk.header.index))

    def send(self, lease: int, *, chunks: Sequence[int] = (), first: int = 0) -> None:
        """Order it to send chunks of a lease's sum."""
        header = ChunkHeader(job="j", lease=lease, kind=GRADIENT, dtype=FLOAT32)
        ranges = [cluster.Range(first=each, count=1) for each in chunks]
        self.plane.carry_out(pb.SendSum(header=header, chunks=ranges, first_element=first * CHUNK_ELEMENTS))

    async def exchange(self, *shards: str) -> None:
        """Exchange tensors until a stream ends."""
        self.plane.connect("a", cluster.Welcome(name="agg", shards=shards))
        await asyncio.wait_for(self.plane.exchange(), LIMIT_SECONDS)


def make_weights(array: SharedArray, steps: Sequence[int], indices: Sequence[int], job: str) -> list[Message]:
    """Return messages that refer to chunks of an array, which each step overwrites."""
    link = ServerTensorLink("worker", (), enabled=False)
    messages: list[Message] = []
    for step in steps:
        for index in indices:
            array.place(index).view(np.float32)[:] = step
            array.mark(index, step)
        header = ChunkHeader(kind=WEIGHTS, dtype=FLOAT32, job=job, step=step)
        messages.append(link.refer(header, array, step, indices))
    return messages


def receive(*messages: Message) -> list[tuple[int, int]]:
    """Return step and index of the chunks that a plane reports of these messages."""

    async def exchange() -> list[tuple[int, int]]:
        worker = Worker({"a": Peer(Expected(0), messages)})
        await worker.exchange()
        return worker.arrived

    return asyncio.run(exchange())


def test_overwritten_weights_are_skipped() -> None:
    array = SharedArray(4 * ELEMENTS, 4 * CHUNK_ELEMENTS)
    messages = make_weights(array, [SLOW, NEWEST], [0, 1], "j")
    assert receive(*messages) == [(NEWEST, 0), (NEWEST, 1)], "the stream goes on"


def test_weights_of_a_job_that_has_ended_are_skipped() -> None:
    array = SharedArray(4 * CHUNK_ELEMENTS, 4 * CHUNK_ELEMENTS)
    assert receive(*make_weights(array, [NEWEST], [0], "former")) == []


def test_wrong_weights_end_the_stream() -> None:
    array = SharedArray(4 * CHUNK_ELEMENTS, 4 * CHUNK_ELEMENTS)  # memory of another layout
    message = ServerTensorLink("worker", (), enabled=False).refer(
        ChunkHeader(kind=WEIGHTS, dtype=FLOAT32, job="j", step=NEWEST), array, NEWEST, (2,)
    )
    with pytest.raises(LinkClosed, match=r"chunk 2\b.*\b0\b.*expected 1\b.*step 10"):
        receive(message)


def exchange_sums(
    shards: Sequence[str], expected: int, order: Callable[[Worker], None]
) -> tuple[Worker, list[list[tuple[int, int]]]]:
    """Return a worker that has sums of leases 1 and 2, and what each peer got until so many chunks were sent."""

    async def exchange() -> tuple[Worker, list[list[tuple[int, int]]]]:
        expectation = Expected(expected)
        peers = {address: Peer(expectation) for address in shards or ["a"]}
        worker = Worker(peers)
        for lease in (1, 2):
            worker.plane.sums.borrow(lease, WHOLE, 4)
        order(worker)
        await worker.exchange(*shards)
        return worker, [peer.sent for peer in peers.values()]

    return asyncio.run(exchange())


def test_pieces_are_sent_once_and_those_of_a_dropped_lease_not_at_all() -> None:
    def order(worker: Worker) -> None:
        worker.send(1, chunks=[0, 1, 2])
        worker.send(2, chunks=[0, 1, 2], first=1)
        worker.plane.carry_out(pb.DropPieces(job="j", lease=1))

    worker, sent = exchange_sums([], 2, order)
    assert sent == [[(2, 2), (2, 1)]]
    assert worker.opened.qsize() == 1


def test_pieces_are_sent_to_the_shards_of_their_chunks() -> None:
    worker, sent = exchange_sums(["s0", "s1"], 3, lambda worker: worker.send(1, chunks=[0, 1, 2]))
    assert sent == [[(1, 2), (1, 0)], [(1, 1)]]
    assert worker.opened.qsize() == 1, "when all streams are open"


def test_a_stream_that_waits_sends_what_is_ordered() -> None:
    async def exchange() -> list[tuple[int, int]]:
        peer = Peer(Expected(1))
        worker = Worker({"a": peer})
        worker.plane.sums.borrow(1, WHOLE, 4)
        worker.send(1, chunks=[2], first=3)
        exchanging = asyncio.ensure_future(worker.exchange())
        await asyncio.wait_for(worker.opened.get(), LIMIT_SECONDS)
        worker.send(1)
        await exchanging
        return peer.sent

    assert asyncio.run(exchange()) == [(1, 2)]
