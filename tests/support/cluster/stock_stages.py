"""Workers of stock gRPC that have some stages of an invented model: their parts of the layout, and its gradients.

A stage's gradient is known without activations, so these workers exchange none.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import grpc
import numpy as np
from numpy.typing import NDArray

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import (
    BFLOAT16,
    FLOAT32,
    GRADIENT,
    INITIAL_WEIGHTS,
    WEIGHTS,
    Chunk,
    ChunkHeader,
    Findings,
)
from services.tensors.layout import Layout
from tests.support.cluster.daemon import eventually
from tests.support.cluster.stock_files import upload_file
from tests.support.cluster.stock_peers import CHUNK_ELEMENTS, WIRE_TYPES, StockWorker, Stream

ELEMENTS = 2 * CHUNK_ELEMENTS + 1000
LAYOUT = Layout.build([("table", (ELEMENTS // 8, 8), True, "table.weight", False)])
MICRO_BATCHES = 4
WEIGHTS_SECONDS = 30.0
Runs = Sequence[tuple[int, int]]
PARTS: Sequence[Runs] = (
    ((0, 300), (CHUNK_ELEMENTS + 500, 2 * CHUNK_ELEMENTS + 10)),
    ((300, CHUNK_ELEMENTS + 500), (2 * CHUNK_ELEMENTS + 10, ELEMENTS)),
)
"""First element, and element after the last, of each part of two stages: two ranges each, with borders in chunks."""
SHARED: Sequence[Runs] = ((), ((0, 200),))
"""What the stages load beside their parts: the last one also the table of tied embeddings."""


def pieces_of(runs: Runs) -> Iterator[tuple[int, int, int]]:
    """Yield the chunk, the first element and the element after the last of each piece, in the order of the layout."""
    for start, stop in sorted(runs):
        while start < stop:
            end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
            yield start // CHUNK_ELEMENTS, start, end
            start = end


def initial() -> NDArray[np.float32]:
    """Return the initial weights, [ELEMENTS] float32."""
    return np.arange(ELEMENTS, dtype=np.float32) / 1024


def gradient_of(first: int, count: int) -> NDArray[np.float32]:
    """Return the sum of micro-batches' gradients, [ELEMENTS] float32. Such sums are exact in any order."""
    return np.full(ELEMENTS, sum(2.0**index for index in range(first, first + count)), np.float32)


class StageWorker(StockWorker):
    """A worker that builds the stages it is told, and does all leases on two threads.

    Args:
        address: address of the aggregator.
        name: name of the worker.

    Attributes:
        weights: the weights that it was sent last, [ELEMENTS] float32; NaN elsewhere.
        received: number of elements of weights that it was sent.
        error: what ended its streams, for people; empty while they are open.
        harm: changes to the headers of its next gradient piece.
    """

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name)
        self.weights = np.full(ELEMENTS, np.nan, np.float32)
        self.received = 0
        self.error = ""
        self.harm: dict[str, Any] = {}
        self._stages: list[int] = []
        self._job = ""
        self._missing = 0  # elements of the version that is being received
        self._loaded = (0, 0)  # generation and step of the weights that are complete
        self._changed = threading.Condition()
        self._shards: list[grpc.Channel] = []
        self.tensor_streams: list[Stream] = []

    def start(self) -> None:
        """Join, and work on threads until the streams end."""
        welcome = eventually(self._attend, "Welcome")
        session = {"tiermesh_incarnation": self.incarnation, "tiermesh_session": str(welcome.session)}
        if welcome.shards:
            self._shards = [grpc.insecure_channel(address) for address in welcome.shards]
            stub: Any = self.stub
            self.tensor_streams = [self._stream(stub(each).Exchange, **session) for each in self._shards]
        else:
            self.tensor_streams = [self.exchange()]
        for stream in self.tensor_streams:
            threading.Thread(target=self._receive, args=(stream,), daemon=True).start()
        threading.Thread(target=self._work, daemon=True).start()

    def _attend(self) -> Any:
        """Return the answer to Hello; None if the aggregator is not ready for workers."""
        self.control = self.attend(self.hello(pipeline_port=1))
        first = self.control.receive()
        self.epoch = first.epoch if first is not None else 0
        return first and first.welcome

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        for channel in self._shards:
            channel.close()

    @property
    def _runs(self) -> Runs:
        return [run for stage in self._stages for run in PARTS[stage]]

    @property
    def _loads(self) -> int:
        """Number of elements that it loads."""
        covered = np.zeros(ELEMENTS, bool)
        for start, stop in [*self._runs, *(run for stage in self._stages for run in SHARED[stage])]:
            covered[start:stop] = True
        return int(covered.sum())

    def _work(self) -> None:
        for kind, order in self.orders():
            if kind == "join":
                self._join(order)
            elif kind == "lease" and order.phase == pb.INITIALISE:
                if 0 in self._stages:
                    layout = upload_file(self.channel, LAYOUT.dumps().encode())
                    self.say(description=pb.Description(job=order.job, lease=order.lease, layout=layout))
            elif kind == "resend":
                wanted = [each for run in order.chunks for each in range(run.first, run.first + run.count)]
                header = ChunkHeader(job=order.job, lease=order.lease, kind=INITIAL_WEIGHTS, dtype=FLOAT32)
                self._send(header, initial(), wanted)
            elif kind == "lease" and order.phase == pb.TRAIN:
                self._train(order)
            elif kind == "lease" and order.phase == pb.EVALUATE:
                self._evaluate(order)
        self.error = " ".join(self.control.status()[1:])

    def _join(self, order: pb.Join) -> None:
        self._job = order.job
        self._stages = list(range(order.first_stage, order.first_stage + order.stages))
        self._missing = self._loads
        shared = [run for stage in self._stages for run in SHARED[stage]]
        self.say(
            ready=pb.Ready(
                job=order.job,
                layout_hash=LAYOUT.hash,
                elements=ELEMENTS,
                evaluation_batches=json.loads(order.spec_json)["evaluation_batches"],
                fingerprint={"backend": "stock"},
                tokens_per_micro_batch=8,
                first_stage=order.first_stage,
                stages=order.stages,
                build=order.build,
                parts=[
                    pb.LayoutPart(offset=start, elements=stop - start) for start, stop in joined(self._runs)
                ],
                shared=[pb.LayoutPart(offset=start, elements=stop - start) for start, stop in shared],
            )
        )

    def _send(self, header: ChunkHeader, values: NDArray[np.float32], chunks: Sequence[int]) -> None:
        """Send the pieces that it has of some chunks, the last one first."""
        for chunk, start, stop in reversed(list(pieces_of(joined(self._runs)))):
            if chunk not in chunks:
                continue
            payload = values[start:stop].astype(WIRE_TYPES[header.dtype]).tobytes()
            described = ChunkHeader(index=chunk, offset=start, elements=stop - start)
            described.MergeFrom(header)
            described.epoch, described.incarnation = self.epoch, self.incarnation
            described.crc32c = google_crc32c.value(payload)
            if header.kind == GRADIENT:
                for name, value in self.harm.items():
                    setattr(described, name, value)
                self.harm = {}
            stream = self.tensor_streams[chunk % len(self.tensor_streams)]
            stream.send(Chunk(header=described, payload=payload))

    def _train(self, order: pb.Lease) -> None:
        header = ChunkHeader(
            job=order.job,
            generation=order.generation,
            step=order.step,
            lease=order.lease,
            kind=GRADIENT,
            dtype=BFLOAT16,
        )
        with self._changed:  # newer weights replace what was not sent of older ones
            loaded = self._changed.wait_for(
                lambda: self._loaded == (order.generation, order.step), WEIGHTS_SECONDS
            )
        assert loaded, f"no weights of step {order.step}"
        self._send(header, gradient_of(order.first, order.count), range(3))
        leaves = range(order.first, order.first + order.count)
        self.say(
            computed=pb.Computed(
                job=order.job,
                generation=order.generation,
                step=order.step,
                lease=order.lease,
                seconds=0.1,
                findings=Findings(losses=map(float, leaves), count=order.count)
                if 1 in self._stages
                else None,
            )
        )

    def _evaluate(self, order: pb.Lease) -> None:
        batches = range(order.first, order.first + order.count) if 1 in self._stages else ()
        losses = [pb.BatchLoss(index=index, sum=10.0 * (index + 1), tokens=10) for index in batches]
        self.say(
            evaluated=pb.Evaluated(
                job=order.job, generation=order.generation, step=order.step, lease=order.lease, losses=losses
            )
        )

    def _receive(self, stream: Stream) -> None:
        while (received := stream.receive()) is not None:
            header = received.header
            if header.job != self._job:
                continue
            values = np.frombuffer(received.payload, WIRE_TYPES[header.dtype]).astype(np.float32)
            assert (header.kind, values.size) == (WEIGHTS, header.elements)
            with self._changed:
                self.weights[header.offset : header.offset + values.size] = values
                self.received += values.size
                self._missing -= values.size
                complete = not self._missing
                if complete:
                    self._missing, self._loaded = self._loads, (header.generation, header.step)
                    self._changed.notify_all()
            if complete:
                loaded = pb.WeightsLoaded(job=header.job, generation=header.generation, step=header.step)
                self.say(weights_loaded=loaded)


def joined(runs: Runs) -> Runs:
    """Return runs in ascending order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found
