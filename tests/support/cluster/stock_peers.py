"""Peers made of stock gRPC and protobuf alone. They can send an aggregator or an optimizer any message."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import google_crc32c
import grpc
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from protos import cluster_pb2 as pb
from protos.cluster_pb2_grpc import ClusterStub, OptimizerStub
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, Chunk, ChunkHeader, Findings
from services.protocol.versions import PROTOCOL_VERSION
from tests.support.cluster.daemon import LIMIT_SECONDS

CHUNK_ELEMENTS = 512 * 1024
WIRE_TYPES: dict[int, np.dtype[Any]] = {
    FLOAT32: np.dtype("<f4"),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    FLOAT16: np.dtype("<f2"),
}


class Stream:
    """A bidirectional call whose messages are sent and received by blocking methods.

    Args:
        method: method of a stub.
        metadata: metadata of the call.
    """

    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self._incoming: queue.Queue[Any] = queue.Queue()
        self._ended = threading.Event()
        self._call = method(iter(self._outgoing.get, None), metadata=metadata, timeout=LIMIT_SECONDS)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._incoming.put(message)
        except grpc.RpcError:
            pass  # `status` returns the error
        self._ended.set()
        self._incoming.put(None)

    def send(self, message: Any) -> None:
        """Send a message."""
        self._outgoing.put(message)

    def receive(self) -> Any:
        """Return the next message, or None at the end of the call."""
        return self._incoming.get(timeout=LIMIT_SECONDS)

    def drain(self) -> list[Any]:
        """Return the messages that have arrived."""
        messages = []
        while not self._incoming.empty():
            messages.append(self._incoming.get())
        return messages

    def finish(self) -> None:
        """Half-close the call: no more messages will be sent."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """Cancel the call, and wait for its end."""
        self._outgoing.put(None)
        self._call.cancel()
        assert self._ended.wait(LIMIT_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether the call has ended."""
        return self._ended.is_set()

    def status(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the end; return code and text of the status."""
        assert self._ended.wait(LIMIT_SECONDS), "the peer did not end the stream"
        return self._call.code(), self._call.details()


class Peer:
    """A peer with an incarnation, a control stream and a data stream."""

    stub: Any

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.incarnation = uuid.uuid4().hex
        self.epoch = 0
        self._streams: list[Stream] = []
        self._channels: list[grpc.Channel] = []
        self.channel = self.open_channel(address)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.cancel()
        for channel in self._channels:
            channel.close()

    def open_channel(self, address: str) -> grpc.Channel:
        """Open a channel, which is closed with the peer."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
        channel = grpc.insecure_channel(address, options=options)
        self._channels.append(channel)
        return channel

    def _stream(self, method: Any, **metadata: str) -> Stream:
        stream = Stream(method, tuple((key.replace("_", "-"), value) for key, value in metadata.items()))
        self._streams.append(stream)
        return stream

    def attend(self, *messages: Any) -> Stream:
        """Open the control stream and send these messages."""
        stream = self._stream(self.stub(self.channel).Attend)
        for message in messages:
            stream.send(message)
        return stream

    def exchange(self, shard: str = "", **metadata: str) -> Stream:
        """Open the data stream, to the peer or to a shard of it at this address."""
        channel = self.open_channel(shard) if shard else self.channel
        return self._stream(self.stub(channel).Exchange, tiermesh_incarnation=self.incarnation, **metadata)

    def raw_exchange(self) -> Stream:
        """Open the data stream for raw bytes."""
        service = self.stub.__name__.removesuffix("Stub")
        method = self.channel.stream_stream(f"/tiermesh.{service}/Exchange")
        return self._stream(method, tiermesh_incarnation=self.incarnation)


class StockWorker(Peer):
    """A worker of stock gRPC."""

    stub = ClusterStub

    def hello(self, **changed: Any) -> pb.WorkerMessage:
        """Return a correct Hello, with some fields changed."""
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "role": "worker",
            "name": self.name,
            "incarnation": self.incarnation,
            "shard_count": 1,
        }
        return pb.WorkerMessage(hello=pb.Hello(**{**fields, **changed}))

    def join(self) -> None:
        """Say Hello, wait for Welcome, and open the data stream, or one to each of the aggregator's shards."""
        self.control = self.attend(self.hello())
        welcome = self.control.receive()
        assert welcome is not None, self.control.status()
        assert welcome.WhichOneof("body") == "welcome"
        self.epoch = welcome.epoch
        session = str(welcome.welcome.session)
        for shard in welcome.welcome.shards:
            self.exchange(shard, tiermesh_session=session)
        if not welcome.welcome.shards:
            self.data = self.exchange()

    def say(self, **body: Any) -> None:
        """Send a message under the current epoch."""
        self.control.send(pb.WorkerMessage(epoch=self.epoch, **body))

    def orders(self) -> Iterator[tuple[str, Any]]:
        """Yield orders as they arrive, and answer heartbeats."""
        while (command := self.control.receive()) is not None:
            kind = command.WhichOneof("body")
            if kind == "heartbeat":
                self.say(heartbeat=pb.Heartbeat())
            else:
                yield kind, getattr(command, kind)

    def order(self, wanted: str) -> Any:
        """Return the next order of this kind."""
        for kind, body in self.orders():
            if kind == wanted:
                return body
        raise AssertionError(f"no {wanted}: {self.control.status()}")


class StockAggregator(Peer):
    """An aggregator of stock gRPC that connects to an optimizer."""

    stub = OptimizerStub

    def hello(self, epoch: int, **changed: Any) -> pb.OptimizerCommand:
        """Return a correct Hello, with some fields changed."""
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "role": "aggregator",
            "name": self.name,
            "incarnation": self.incarnation,
            "epoch_seen": epoch,
            "shard_count": 1,
        }
        return pb.OptimizerCommand(epoch=epoch, hello=pb.Hello(**{**fields, **changed}))


def chunk(header: ChunkHeader, values: NDArray[np.float32], **changed: Any) -> Chunk:
    """Return a chunk of a flat array, correct except for the fields in `changed`.

    `header` gives the fields that identify the chunk, and its dtype.
    """
    start = header.index * CHUNK_ELEMENTS
    dtype = header.dtype or FLOAT32
    piece = values[start : start + CHUNK_ELEMENTS].astype(WIRE_TYPES[dtype])
    payload = changed.pop("payload", piece.tobytes())
    described = ChunkHeader(
        offset=start, elements=piece.size, dtype=dtype, crc32c=google_crc32c.value(payload)
    )
    described.MergeFrom(header)
    for name, value in changed.items():
        setattr(described, name, value)
    return Chunk(header=described, payload=payload)


def gradient(worker: StockWorker, lease: pb.Lease, index: int, losses: list[float]) -> ChunkHeader:
    """Return the header that identifies a gradient chunk of a lease. Chunk 0 carries the findings."""
    return ChunkHeader(
        job=lease.job,
        epoch=worker.epoch,
        generation=lease.generation,
        step=lease.step,
        lease=lease.lease,
        incarnation=worker.incarnation,
        kind=GRADIENT,
        index=index,
        findings=Findings(losses=losses, count=lease.count) if index == 0 else None,
    )
