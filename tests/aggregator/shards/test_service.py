"""A shard's gRPC service: which aggregator it obeys, which workers it serves, and how it refuses others."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.shards.service import ShardService
from plane.messages import unwrap, wrap_order
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.config.load import load_job
from services.files.memory import FilesInMemory
from services.files.transfer import upload
from services.protocol.file_refs import make_ref
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.host_memory import read_host_memory
from services.tensors.chunk_messages import pack_chunk, serialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.cluster.bits import sized_config, write_config

LIMIT_SECONDS = 60
LAYOUT = Layout.build([("w", (3 * CHUNK_ELEMENTS,), True, "w", False)])
VALUES = np.ones(CHUNK_ELEMENTS, np.float32)
ABORTED, PRECONDITION = grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class Shard:
    """Calls to a shard."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)

    async def attend(self, epoch: int = 1, **changed: Any) -> Any:
        """Open an aggregator's control stream and send Hello, for shard 0 of 2 unless changed."""
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "role": "aggregator",
            "name": "agg",
            "incarnation": "agg-1",
            "epoch_seen": epoch,
            "shard_index": 0,
            "shard_count": 2,
        }
        call = self.channel.stream_stream(
            "/tiermesh.Shard/Attend",
            request_serializer=pb.PlaneOrders.SerializeToString,
            response_deserializer=pb.PlaneReports.FromString,
        )()
        await self.send(call, cluster.Hello(**{**fields, **changed}), epoch=epoch)
        return call

    @staticmethod
    async def send(call: Any, *orders: Any, epoch: int = 1) -> None:
        """Send orders in one message."""
        await call.write(pb.PlaneOrders(epoch=epoch, orders=[wrap_order(each) for each in orders]))

    @staticmethod
    async def next_report(call: Any, kind: Any) -> Any:
        """Return the next report of this type; skip others."""
        while isinstance(batch := await call.read(), pb.PlaneReports):
            for envelope in batch.reports:
                body = unwrap(envelope)
                if isinstance(body, kind):
                    return body
        raise AssertionError(f"no {kind.__name__}: {await call.details()}")

    async def open_part(self, spec: str, layout: str) -> pb.OpenPart:
        """Upload a layout, and return the order that opens the job."""
        ref = make_ref(layout.encode())
        await upload(self.channel, FilesInMemory({ref.sha256: layout.encode()}), [ref], "the shard")
        return pb.OpenPart(opening=1, job="j", spec_json=spec, layout=ref)

    def exchange(self, session: str, incarnation: str = "w-1") -> Any:
        """Open a worker's data stream."""
        metadata = ((INCARNATION_KEY, incarnation), (SESSION_KEY, session))
        return self.channel.stream_stream("/tiermesh.Cluster/Exchange")(metadata=metadata)


def with_shard(scenario: Callable[[Shard], Awaitable[None]]) -> None:
    async def run() -> None:
        service = ShardService(name="s", state_dir=Path(folder), metrics=AggregatorMetrics())
        await service.start()
        server = await start_server("127.0.0.1:0", Security(), service.handlers(), service.service_names)
        shard = Shard(f"127.0.0.1:{server.port}")
        try:
            await scenario(shard)
        finally:
            await shard.channel.close()
            await service.stop()
            await server.stop(0)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status and the one-line reason with which a call ended."""
    code = await call.code()
    line = await call.details()
    assert line and "\n" not in line
    return code, line


@pytest.mark.parametrize(
    ("changed", "code", "line"),
    [
        ({"protocol": 99, "protocol_min": 99}, PRECONDITION, "protocol 99"),
        ({"role": "worker"}, PRECONDITION, "'worker'"),
        ({"shard_index": 2}, PRECONDITION, "shard 2 of 2"),
    ],
)
def test_an_aggregator_that_does_not_fit_is_refused(
    changed: dict[str, Any], code: grpc.StatusCode, line: str
) -> None:
    async def scenario(shard: Shard) -> None:
        found, reason = await ended(await shard.attend(**changed))
        assert found is code
        assert line in reason

    with_shard(scenario)


def test_a_newer_aggregator_takes_over_and_an_older_one_is_refused() -> None:
    async def scenario(shard: Shard) -> None:
        older = await shard.attend(epoch=3)
        await shard.next_report(older, cluster.Hello)
        newer = await shard.attend(epoch=4, incarnation="agg-2", shard_count=1)
        assert (await shard.next_report(newer, cluster.Hello)).shard_count == 1
        _, line = await ended(older)
        assert "epoch 4 has taken over from epoch 3" in line
        code, line = await ended(await shard.attend(epoch=3))
        assert code is ABORTED, "this status ends the older aggregator"
        assert "epoch 3" in line and "obeys epoch 4" in line

    with_shard(scenario)


def test_a_shard_says_what_memory_its_host_has() -> None:
    async def scenario(shard: Shard) -> None:
        answer = await shard.next_report(await shard.attend(), cluster.Hello)
        expected = read_host_memory()
        assert (answer.host, answer.memory_bytes) == (expected.host, expected.total_bytes)
        assert 0 < answer.memory_free_bytes <= answer.memory_bytes

    with_shard(scenario)


def test_a_process_cannot_be_two_shards() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.next_report(await shard.attend(), cluster.Hello)
        code, line = await ended(await shard.attend(shard_index=1))
        assert code is PRECONDITION
        assert all(fact in line for fact in ("aggregator agg", "shard 1 of 2", "shard 0 of 2", "--shards"))

    with_shard(scenario)


def test_a_stream_without_hello_is_refused() -> None:
    async def scenario(shard: Shard) -> None:
        call = shard.channel.stream_stream("/tiermesh.Shard/Attend")()
        await call.write(
            pb.PlaneOrders(epoch=1, orders=[wrap_order(cluster.Heartbeat())]).SerializeToString()
        )
        code, line = await ended(call)
        assert code is INVALID
        assert "the first message must be Hello" in line

    with_shard(scenario)


def test_a_worker_that_attends_a_shard_is_sent_to_the_aggregator() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.next_report(await shard.attend(), cluster.Hello)
        code, line = await ended(shard.channel.stream_stream("/tiermesh.Cluster/Attend")())
        assert code is PRECONDITION
        assert "shard 0 of aggregator agg" in line

    with_shard(scenario)


def test_a_data_stream_whose_session_is_not_a_number_is_refused() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.next_report(await shard.attend(), cluster.Hello)
        for session in ("9" * 5000, "-1", "1_0"):
            code, line = await ended(shard.exchange(session))
            assert code is PRECONDITION
            assert f"'w-1', session {session[:20]}:" in line

    with_shard(scenario)


def test_a_data_stream_of_an_unknown_worker_is_refused() -> None:
    async def scenario(shard: Shard) -> None:
        for session in ("", "x", "1"):
            code, line = await ended(shard.exchange(session))
            assert code is PRECONDITION
            assert "worker incarnation 'w-1'" in line
        control = await shard.attend()
        await shard.send(control, pb.WorkerAttends(session=2, incarnation="w-1", name="w"))
        await shard.send(control, cluster.Heartbeat())
        await shard.next_report(control, cluster.Heartbeat)
        code, line = await ended(shard.exchange("1"))
        assert code is PRECONDITION, "session 1 was replaced by session 2"

    with_shard(scenario)


def test_a_data_stream_waits_for_the_aggregators_announcement_and_ends_on_its_order() -> None:
    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.next_report(control, cluster.Hello)
        stream = shard.exchange("1")
        await shard.send(control, pb.WorkerAttends(session=1, incarnation="w-1", name="w"))
        assert (await shard.next_report(control, pb.WorkerExchanges)).session == 1
        await shard.send(control, pb.WorkerLeft(session=1, reason="it was silent"))
        _, line = await ended(stream)
        assert "it was silent" in line

    with_shard(scenario)


def chunk_bytes(index: int = 0, **changed: Any) -> tuple[bytes, int]:
    """Return the bytes of a chunk of initial weights, with changed header fields, and its index."""
    identity = ChunkHeader(job="j", epoch=1, lease=5, incarnation="w-1", kind=INITIAL_WEIGHTS, dtype=FLOAT32)
    chunk = pack_chunk(identity, index, VALUES)
    for name, value in changed.items():
        setattr(chunk.header, name, value)
    return serialize_chunk(chunk), index


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (chunk_bytes(1)[0], "chunk 1 of job j, lease 5: it belongs to shard 1 of 2"),
        (chunk_bytes(7)[0], "chunk 7: no such index, the layout has 3 chunks"),
        (chunk_bytes(2, elements=3)[0], "chunk 2: 3 elements, expected 524288"),
        (chunk_bytes(2, crc32c=3)[0], "chunk 2: crc32c"),
        (b"no chunk at all", "is not a Chunk"),
    ],
)
def test_a_chunk_that_does_not_fit_ends_the_stream_with_its_coordinates(
    tmp_path_factory: pytest.TempPathFactory, message: bytes, line: str
) -> None:
    spec = load_job(write_config(tmp_path_factory.mktemp("job"), sized_config(CHUNK_ELEMENTS, 3)), [])[
        0
    ].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.send(
            control,
            await shard.open_part(spec, LAYOUT.dumps()),
            pb.WorkerAttends(session=1, incarnation="w-1", name="w"),
        )
        await shard.next_report(control, pb.PartOpened)
        stream = shard.exchange("1")
        await stream.write(chunk_bytes(2)[0])
        arrived = await shard.next_report(control, pb.ArrivedPieces)
        assert (arrived.session, arrived.header.index, arrived.header.lease) == (1, 2, 5)
        await stream.write(message)
        code, reason = await ended(stream)
        assert code is INVALID
        assert line in reason
        gone = await shard.next_report(control, pb.WorkerGone)
        assert (gone.session, line in gone.reason) == (1, True)

    with_shard(scenario)


def test_chunks_of_another_job_or_epoch_are_dropped_without_a_report(tmp_path: Any) -> None:
    spec = load_job(write_config(tmp_path, sized_config(CHUNK_ELEMENTS, 3)), [])[0].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.send(
            control,
            await shard.open_part(spec, LAYOUT.dumps()),
            pb.WorkerAttends(session=1, incarnation="w-1", name="w"),
        )
        await shard.next_report(control, pb.PartOpened)
        stream = shard.exchange("1")
        for changed in ({"job": "k"}, {"epoch": 0}, {"kind": GRADIENT}):
            await stream.write(chunk_bytes(2, **changed)[0])
        arrived = await shard.next_report(control, pb.ArrivedPieces)
        assert (arrived.arrival, arrived.header.kind) == (1, GRADIENT), (
            "the aggregator decides on the other chunk"
        )

    with_shard(scenario)


@pytest.mark.parametrize(
    ("order", "line"),
    [
        (pb.KeepPieces(arrivals=[7]), "arrived chunk 7"),
        (pb.FinishSum(chunks=[2], node=pb.SumNode(count=1)), "no sum of 1 micro-batch from 0 of chunk 2"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_told_and_ends_the_session(order: Any, line: str) -> None:
    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.next_report(control, cluster.Hello)
        await shard.send(control, order)
        assert line in (await shard.next_report(control, pb.OrderFailed)).reason
        code, reason = await ended(control)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert line in reason
        await shard.next_report(await shard.attend(), cluster.Hello)

    with_shard(scenario)


def test_a_damaged_layout_fails_the_job(tmp_path: Any) -> None:
    spec = load_job(write_config(tmp_path, sized_config(CHUNK_ELEMENTS, 3)), [])[0].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.send(control, await shard.open_part(spec, '[{"decays":true}]'))
        assert "shape" in (await shard.next_report(control, pb.PartBroke)).reason

    with_shard(scenario)


def test_a_layout_larger_than_the_job_s_model_is_not_allocated(tmp_path: Any) -> None:
    spec = load_job(write_config(tmp_path, sized_config(CHUNK_ELEMENTS, 3)), [])[0].to_json()
    huge = Layout.build([("w", (1 << 40,), True, "w", False)])

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.send(control, await shard.open_part(spec, huge.dumps()))
        reason = (await shard.next_report(control, pb.PartBroke)).reason
        assert f"{1 << 40} elements, expected the {LAYOUT.elements} parameters" in reason

    with_shard(scenario)
