"""A shard's door: whom it obeys, whom it serves, and what it says to those that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.shards.messages import opened, order
from aggregator.shards.server.service import ShardService
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.config.load import load_job
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import AggregatorMetrics
from services.tensors.chunk_messages import pack_chunk, serialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.cluster.bits import regression_config, write_config

LIMIT_SECONDS = 60
LAYOUT = Layout.build([("w", (3 * CHUNK_ELEMENTS,), True, "w", False)])
VALUES = np.ones(CHUNK_ELEMENTS, np.float32)
ABORTED, PRECONDITION = grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class Shard:
    """A shard, and calls to it."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)

    async def attend(self, epoch: int = 1, **changed: Any) -> Any:
        """An aggregator's control stream, its Hello said; shard 0 of 2 unless changed."""
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
            request_serializer=pb.ShardOrders.SerializeToString,
            response_deserializer=pb.ShardReports.FromString,
        )()
        await self.say(call, cluster.Hello(**{**fields, **changed}), epoch=epoch)
        return call

    @staticmethod
    async def say(call: Any, *orders: Any, epoch: int = 1) -> None:
        """Orders, in one message."""
        await call.write(pb.ShardOrders(epoch=epoch, orders=[order(each) for each in orders]))

    @staticmethod
    async def hear(call: Any, kind: Any) -> Any:
        """The next report of that kind."""
        while isinstance(batch := await call.read(), pb.ShardReports):
            for sealed in batch.reports:
                body = opened(sealed)
                if isinstance(body, kind):
                    return body
        raise AssertionError(f"no {kind.__name__}: {await call.details()}")

    def exchange(self, session: str, incarnation: str = "w-1") -> Any:
        """A worker's data stream."""
        metadata = ((INCARNATION_KEY, incarnation), (SESSION_KEY, session))
        return self.channel.stream_stream("/tiermesh.Cluster/Exchange")(metadata=metadata)


def with_shard(scenario: Callable[[Shard], Awaitable[None]]) -> None:
    async def run() -> None:
        service = ShardService(name="s", metrics=AggregatorMetrics())
        await service.start()
        server = await start_server("127.0.0.1:0", Security(), service.handlers(), service.service_names)
        shard = Shard(f"127.0.0.1:{server.port}")
        try:
            await scenario(shard)
        finally:
            await shard.channel.close()
            await service.stop()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call was ended."""
    code = await call.code()
    line = await call.details()
    assert line and "\n" not in line
    return code, line


@pytest.mark.parametrize(
    ("changed", "code", "line"),
    [
        ({"protocol": 99}, PRECONDITION, "agg speaks protocol 99, this shard 2; install the same version"),
        ({"role": "worker"}, INVALID, "says that it is a 'worker'"),
        ({"shard_index": 2}, INVALID, "this is shard 2 of 2"),
    ],
)
def test_an_aggregator_that_does_not_fit(changed: dict[str, Any], code: grpc.StatusCode, line: str) -> None:
    async def scenario(shard: Shard) -> None:
        found, said = await ended(await shard.attend(**changed))
        assert found is code
        assert line in said

    with_shard(scenario)


def test_a_newer_aggregator_takes_over_and_an_older_one_is_told_so() -> None:
    async def scenario(shard: Shard) -> None:
        older = await shard.attend(epoch=3)
        await shard.hear(older, cluster.Hello)
        newer = await shard.attend(epoch=4, incarnation="agg-2", shard_count=1)
        assert (await shard.hear(newer, cluster.Hello)).shard_count == 1
        _, line = await ended(older)
        assert "epoch 4 has taken over from epoch 3" in line
        code, line = await ended(await shard.attend(epoch=3))
        assert code is ABORTED, "which ends the older aggregator"
        assert "agg is of epoch 3, this shard obeys epoch 4: a newer aggregator has taken over" in line

    with_shard(scenario)


def test_one_process_can_not_be_two_shards() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.hear(await shard.attend(), cluster.Hello)
        code, line = await ended(await shard.attend(shard_index=1))
        assert code is PRECONDITION
        assert "shard s is shard 0 of 2 already, and can't be shard 1 too" in line

    with_shard(scenario)


def test_who_does_not_say_hello_is_sent_away() -> None:
    async def scenario(shard: Shard) -> None:
        call = shard.channel.stream_stream("/tiermesh.Shard/Attend")()
        await call.write(pb.ShardOrders(epoch=1, orders=[order(cluster.Heartbeat())]).SerializeToString())
        code, line = await ended(call)
        assert code is INVALID
        assert "the first message must be Hello" in line

    with_shard(scenario)


def test_a_worker_that_attends_a_shard_is_told_whom_to_attend() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.hear(await shard.attend(), cluster.Hello)
        code, line = await ended(shard.channel.stream_stream("/tiermesh.Cluster/Attend")())
        assert code is PRECONDITION
        assert "s is shard 0 of aggregator agg; workers attend the aggregator itself" in line

    with_shard(scenario)


def test_a_data_stream_whose_session_is_no_number() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.hear(await shard.attend(), cluster.Hello)
        for session in ("9" * 5000, "-1", "1_0"):
            code, line = await ended(shard.exchange(session))
            assert code is PRECONDITION
            assert f"no worker incarnation 'w-1' of session {session[:20]} attends" in line

    with_shard(scenario)


def test_a_data_stream_of_nobody_that_attends() -> None:
    async def scenario(shard: Shard) -> None:
        for session in ("", "x", "1"):
            code, line = await ended(shard.exchange(session))
            assert code is PRECONDITION
            assert "no worker incarnation 'w-1'" in line
        control = await shard.attend()
        await shard.say(control, pb.WorkerAttends(session=2, incarnation="w-1", name="w"))
        await shard.say(control, cluster.Heartbeat())
        await shard.hear(control, cluster.Heartbeat)
        code, line = await ended(shard.exchange("1"))
        assert code is PRECONDITION, "of a connection that the worker has replaced"

    with_shard(scenario)


def test_a_data_stream_waits_for_the_aggregators_word_and_ends_with_it() -> None:
    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.hear(control, cluster.Hello)
        stream = shard.exchange("1")
        await shard.say(control, pb.WorkerAttends(session=1, incarnation="w-1", name="w"))
        assert (await shard.hear(control, pb.WorkerExchanges)).session == 1
        await shard.say(control, pb.WorkerLeft(session=1, reason="it was silent"))
        _, line = await ended(stream)
        assert "it was silent" in line

    with_shard(scenario)


def bad(index: int = 0, **changed: Any) -> tuple[bytes, int]:
    """A chunk of initial weights, and what it is of."""
    identity = ChunkHeader(job="j", epoch=1, lease=5, incarnation="w-1", kind=INITIAL_WEIGHTS, dtype=FLOAT32)
    chunk = pack_chunk(identity, index, VALUES)
    for name, value in changed.items():
        setattr(chunk.header, name, value)
    return serialize_chunk(chunk), index


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (bad(1)[0], "chunk 1: of job j, lease 5: it is shard 1's of 2, this is shard 0"),
        (bad(7)[0], "chunk 7: no such index, the layout has 3 chunks"),
        (bad(2, elements=3)[0], "chunk 2: 3 elements, expected 524288"),
        (bad(2, crc32c=3)[0], "chunk 2: crc32c"),
        (b"no chunk at all", "is not a Chunk"),
    ],
)
def test_a_chunk_that_does_not_fit_ends_the_stream_with_its_coordinates(
    tmp_path_factory: pytest.TempPathFactory, message: bytes, line: str
) -> None:
    spec = load_job(write_config(tmp_path_factory.mktemp("job"), regression_config()), [])[0].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.say(
            control,
            pb.OpenPart(opening=1, job="j", spec_json=spec, layout_json=LAYOUT.dumps()),
            pb.WorkerAttends(session=1, incarnation="w-1", name="w"),
        )
        await shard.hear(control, pb.PartOpened)
        stream = shard.exchange("1")
        await stream.write(bad(2)[0])
        arrived = await shard.hear(control, pb.ArrivedChunk)
        assert (arrived.session, arrived.header.index, arrived.header.lease) == (1, 2, 5)
        await stream.write(message)
        code, said = await ended(stream)
        assert code is INVALID
        assert line in said
        gone = await shard.hear(control, pb.WorkerGone)
        assert (gone.session, line in gone.reason) == (1, True)

    with_shard(scenario)


def test_chunks_of_another_job_or_epoch_are_dropped_and_told_of_to_nobody(tmp_path: Any) -> None:
    spec = load_job(write_config(tmp_path, regression_config()), [])[0].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.say(
            control,
            pb.OpenPart(opening=1, job="j", spec_json=spec, layout_json=LAYOUT.dumps()),
            pb.WorkerAttends(session=1, incarnation="w-1", name="w"),
        )
        await shard.hear(control, pb.PartOpened)
        stream = shard.exchange("1")
        for changed in ({"job": "k"}, {"epoch": 0}, {"kind": GRADIENT}):
            await stream.write(bad(2, **changed)[0])
        arrived = await shard.hear(control, pb.ArrivedChunk)
        assert (arrived.arrival, arrived.header.kind) == (1, GRADIENT), "what it is of use for, others decide"

    with_shard(scenario)


@pytest.mark.parametrize(
    ("orders", "code", "line"),
    [
        (
            [pb.KeepSum(arrival=7, node=pb.SumNode(count=1))],
            INVALID,
            "an order on arrival 7: the newest is 0",
        ),
        (
            [pb.FinishSum(chunk=2, node=pb.SumNode(count=1))],
            grpc.StatusCode.INTERNAL,
            "can't carry out an order",
        ),
    ],
)
def test_an_order_that_makes_no_sense_ends_the_attendance(
    orders: list[Any], code: grpc.StatusCode, line: str
) -> None:
    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.hear(control, cluster.Hello)
        await shard.say(control, *orders)
        found, said = await ended(control)
        assert found is code
        assert line in said
        await shard.hear(await shard.attend(), cluster.Hello)

    with_shard(scenario)


def test_a_layout_that_is_damaged_fails_the_job(tmp_path: Any) -> None:
    spec = load_job(write_config(tmp_path, regression_config()), [])[0].to_json()

    async def scenario(shard: Shard) -> None:
        control = await shard.attend()
        await shard.say(
            control, pb.OpenPart(opening=1, job="j", spec_json=spec, layout_json='[{"name": "w"}]')
        )
        assert "shape" in (await shard.hear(control, pb.PartBroke)).reason

    with_shard(scenario)


def test_checkpoints_are_for_the_aggregator_that_attends() -> None:
    async def scenario(shard: Shard) -> None:
        await shard.hear(await shard.attend(), cluster.Hello)
        call = shard.channel.unary_stream(
            "/tiermesh.Shard/ReadPart", request_serializer=pb.ReadPartRequest.SerializeToString
        )(pb.ReadPartRequest(copy=1), metadata=((INCARNATION_KEY, "somebody"),))
        code, line = await ended(call)
        assert code is PRECONDITION
        assert "aggregator incarnation 'somebody' does not attend" in line

    with_shard(scenario)
