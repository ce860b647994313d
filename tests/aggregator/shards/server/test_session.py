"""What a shard holds: how much of it may wait."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from aggregator.core.events import ChunkArrived
from aggregator.shards.messages import order
from aggregator.shards.server.session import WAITING_CHUNKS, ShardSession
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics
from services.tensors.chunk_messages import pack_chunk

LIMIT_SECONDS = 30
VALUES = np.ones(3, np.float32)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "discarded"])
def test_payloads_wait_until_the_kernel_thread_has_come_to_them(kept: bool) -> None:
    async def scenario() -> None:
        hold = ShardSession(
            cluster.Hello(name="agg", incarnation="i", epoch_seen=1, shard_index=0, shard_count=1),
            incarnation="s",
            metrics=AggregatorMetrics(),
            optimizer_metrics=OptimizerMetrics(),
            shared_memory=False,
        )
        go = threading.Event()
        hold._kernel.submit(go.wait, LIMIT_SECONDS)
        for arrival in range(1, WAITING_CHUNKS + 1):
            await hold._backlog.wait_for_room()
            chunk = pack_chunk(ChunkHeader(job="j", kind=GRADIENT, dtype=FLOAT32), arrival, VALUES)
            hold._feed(ChunkArrived(1, chunk.header), chunk)
            decision = pb.KeepSum(arrival=arrival, node=pb.SumNode(count=1))
            if kept:
                hold.carry_out([order(decision)])
        room = asyncio.ensure_future(hold._backlog.wait_for_room())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not room.done(), "decided on or not, they are held"
        if kept:
            go.set()
        else:
            hold.carry_out([order(pb.DiscardChunk(arrival=each + 1)) for each in range(WAITING_CHUNKS)])
        await room
        go.set()
        hold.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
