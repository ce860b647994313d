"""A shard's session: bound on the payloads that wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from aggregator.core.events import ChunkArrived
from aggregator.shards.messages import wrap_order
from aggregator.shards.server.session import MAX_WAITING_CHUNKS, ShardSession
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.files.store import FileStore
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import pack_chunk

LIMIT_SECONDS = 30
VALUES = np.ones(3, np.float32)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "discarded"])
def test_payloads_count_until_they_are_discarded_or_the_kernel_thread_has_them(
    tmp_path: Path, kept: bool
) -> None:
    async def scenario() -> None:
        session = ShardSession(
            cluster.Hello(name="agg", incarnation="i", epoch_seen=1, shard_index=0, shard_count=1),
            incarnation="s",
            metrics=AggregatorMetrics(),
            optimizer_metrics=OptimizerMetrics(),
            shared_memory=False,
            files=FileStore(tmp_path),
        )
        kernel_may_run = threading.Event()
        session._kernel.submit(kernel_may_run.wait, LIMIT_SECONDS)
        for arrival in range(1, MAX_WAITING_CHUNKS + 1):
            await session._backlog.wait_for_room()
            chunk = pack_chunk(ChunkHeader(job="j", kind=GRADIENT, dtype=FLOAT32), arrival, VALUES)
            session._feed(ChunkArrived(1, chunk.header), chunk)
            decision = pb.KeepPiece(job="j", arrival=arrival)
            if kept:
                session.carry_out([wrap_order(decision)])
        room = asyncio.ensure_future(session._backlog.wait_for_room())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not room.done(), "they take memory, whether decided on or not"
        if kept:
            kernel_may_run.set()
        else:
            session.carry_out(
                [wrap_order(pb.DiscardPiece(arrival=each + 1)) for each in range(MAX_WAITING_CHUNKS)]
            )
        await room
        kernel_may_run.set()
        session.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
