"""Any orders: a shard carries them out, or says in one line why it can't."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.shards.session import ShardSession
from plane.messages import wrap_order
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
from services.protocol.bounds import MessageTooLarge
from services.protocol.file_refs import make_ref
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import pack_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from tests.support.anything import message
from tests.support.cluster.bits import sized_config, write_config
from tests.support.plane_threads import wait_for_threads

LAYOUT = Layout.build([("w", (CHUNK_ELEMENTS + 4,), True, "w", False)])
ARRIVALS = 3
LIMIT_SECONDS = 60
METRICS, OPTIMIZER_METRICS = AggregatorMetrics(), OptimizerMetrics()
VALUES = np.ones(CHUNK_ELEMENTS, np.float32)

LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "arrivals": st.lists(st.integers(1, ARRIVALS + 1), max_size=3),
    "node": st.builds(pb.SumNode, first=st.integers(0, 2), count=st.integers(1, 2)),
    "chunk": st.integers(0, 2),
    "chunks": st.lists(st.integers(0, 2), min_size=1, max_size=3),
    "session": st.integers(1, 2),
    "job": st.sampled_from("jjk"),
    "lease": st.integers(0, 1),
    "layout": st.just(make_ref(LAYOUT.dumps().encode())),
    "generation": st.just(1),
    "step": st.integers(0, 2),
    "opening": st.just(1),
    "copy": st.integers(1, 2),
}
KINDS = [
    pb.WorkerAttends, pb.WorkerLeft, pb.OpenPart, pb.DropPart, pb.KeepSum, pb.DiscardPieces, pb.DropSum, pb.MergeSums,
    pb.FinishSum, pb.DropSums, pb.StageChunks, pb.UpdatePart, pb.MakeWeights, pb.SendVersion, pb.CopyPart, pb.DropCopy,
    pb.KeepPieces, pb.DropPieces, cluster.Heartbeat, cluster.Hello,
]  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return load_job(
        write_config(tmp_path_factory.mktemp("job"), sized_config(CHUNK_ELEMENTS // 4 + 1, 4)), []
    )[0]


async def _reports_after(orders: Sequence[Message], spec_json: str) -> list[pb.PlaneReport]:
    """Return the reports of a shard, with an open job and undecided chunks, after these orders."""
    hello = cluster.Hello(name="agg", incarnation="i", epoch_seen=1, shard_index=0, shard_count=2)
    text = LAYOUT.dumps().encode()
    files, layout = FilesInMemory(), make_ref(text)
    files.add(layout, MemoryFile([text]))
    session = ShardSession(
        hello,
        incarnation="s",
        metrics=METRICS,
        optimizer_metrics=OPTIMIZER_METRICS,
        shared_memory=False,
        files=files,
    )
    try:
        opening = pb.OpenPart(opening=1, job="j", spec_json=spec_json, layout=layout)
        session.carry_out([wrap_order(opening)])
        for _ in range(ARRIVALS):
            chunk = pack_chunk(ChunkHeader(job="j", kind=GRADIENT, dtype=FLOAT32), 0, VALUES)
            session.plane._piece_arrived(1, chunk)
        for body in orders:
            if isinstance(body, pb.OpenPart):
                body.spec_json = spec_json
            with suppress(MessageTooLarge):  # such an order is refused where it is made
                session.carry_out([wrap_order(body)])
        await wait_for_threads(session.plane)
        return await session.reports.take_batch(1 << 16)
    finally:
        session.close("over")


@settings(max_examples=120, deadline=None)
@given(orders=st.lists(st.one_of([message(kind, **LIKELY) for kind in KINDS]), max_size=8))
def test_any_orders_are_carried_out_or_refused(config: JobConfig, orders: list[Message]) -> None:
    reports = asyncio.run(asyncio.wait_for(_reports_after(orders, config.to_json()), LIMIT_SECONDS))
    for each in reports:
        each.SerializeToString()
        for body in (each.broke, each.order_failed):
            assert body.reason.isprintable()
        assert each.broke.reason or not each.HasField("broke")
        assert each.order_failed.reason or not each.HasField("order_failed")
    failed = [each for each in reports if each.HasField("order_failed")]
    assert failed in ([], reports[-1:]), "it is the last report of the session"
