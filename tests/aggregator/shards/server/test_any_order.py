"""Whatever an aggregator orders, a shard carries it out, or says in a line why not; and whatever shards report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core.events import ChunkArrived
from aggregator.shards.messages import order
from aggregator.shards.server.session import ShardSession
from optimizer.core import events as ev
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics
from services.tensors.chunk_messages import pack_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.links import LinkClosed
from tests.aggregator.shards.client.test_tensor_store import Home
from tests.support.anything import message
from tests.support.cluster.bits import regression_config, write_config

LAYOUT = Layout.build([("w", (CHUNK_ELEMENTS + 5,), True, "w", False)])
ARRIVALS = 3
LIMIT_SECONDS = 60
METRICS, OPTIMIZER_METRICS = AggregatorMetrics(), OptimizerMetrics()
VALUES = np.ones(CHUNK_ELEMENTS, np.float32)
SUMS = st.lists(st.floats(), max_size=5)

LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "arrival": st.integers(1, ARRIVALS + 1),
    "node": st.builds(pb.SumNode, first=st.integers(0, 2), count=st.integers(1, 2)),
    "chunk": st.integers(0, 2),
    "session": st.integers(1, 2),
    "job": st.just("j"),
    "layout_json": st.just(LAYOUT.dumps()),
    "generation": st.just(1),
    "step": st.integers(0, 2),
    "opening": st.just(1),
    "block_sums": SUMS,
}
KINDS = [
    pb.WorkerAttends, pb.WorkerLeft, pb.OpenPart, pb.DropPart, pb.KeepSum, pb.DiscardChunk, pb.DropSum, pb.MergeSums,
    pb.FinishSum, pb.DropSums, pb.StageChunk, pb.UpdatePart, pb.MakeWeights, pb.SendUpTo, pb.CopyPart,
    cluster.Heartbeat, cluster.Hello,
]  # fmt: skip
REPORTS = [pb.PartOpened, pb.StagedChunk, pb.UpdatedPart, pb.PartBroke]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return load_job(write_config(tmp_path_factory.mktemp("job"), regression_config()), [])[0]


async def _carried_out(orders: Sequence[Message], spec_json: str) -> list[pb.ShardReport]:
    """What a shard that has a job open, and chunks that wait for a decision, reports after these orders."""
    hello = cluster.Hello(name="agg", incarnation="i", epoch_seen=1, shard_index=0, shard_count=2)
    hold = ShardSession(
        hello, incarnation="s", metrics=METRICS, optimizer_metrics=OPTIMIZER_METRICS, shared_memory=False
    )
    loop = asyncio.get_running_loop()
    try:
        opening = pb.OpenPart(opening=1, job="j", spec_json=spec_json, layout_json=LAYOUT.dumps())
        hold.carry_out([order(opening)])
        for _ in range(ARRIVALS):
            chunk = pack_chunk(ChunkHeader(job="j", kind=GRADIENT, dtype=FLOAT32), 0, VALUES)
            hold._feed(ChunkArrived(1, chunk.header), chunk)
        for body in orders:
            if isinstance(body, pb.OpenPart) and not body.spec_json:
                body.spec_json = spec_json
            hold.carry_out([order(body)])
        await loop.run_in_executor(hold._kernel, lambda: None)  # they are done
        await asyncio.sleep(0)
        return await hold.reports.take_batch(1 << 16)
    finally:
        hold.close("over")


@settings(max_examples=120, deadline=None)
@given(orders=st.lists(st.one_of([message(kind, **LIKELY) for kind in KINDS]), max_size=8))
def test_any_orders(config: JobConfig, orders: list[Message]) -> None:
    scenario = _carried_out(orders, config.to_json())
    try:
        reports = asyncio.run(asyncio.wait_for(scenario, LIMIT_SECONDS))
    except LinkClosed as closed:
        assert str(closed).isprintable()
        return
    for each in reports:
        each.SerializeToString()
        if each.HasField("broke"):
            assert each.broke.reason.isprintable() and each.broke.reason


@settings(max_examples=120, deadline=None)
@given(
    reports=st.lists(
        st.tuples(st.integers(0, 1), st.one_of([message(kind, **LIKELY) for kind in REPORTS])), max_size=12
    ),
    measures=st.booleans(),
)
def test_any_reports(config: JobConfig, reports: list[tuple[int, Any]], measures: bool) -> None:
    async def scenario() -> Home:
        home = Home()
        await home.open(config)
        if measures:
            home.home.measure(ev.Measure("j", 1))
        else:
            home.home.update(ev.Update("j", 1, True, 1.0, 0.1), ChunkHeader(generation=1, step=2))
        for shard, body in reports:
            home.report(shard, body)
            await asyncio.sleep(0)
        return home

    home = asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    assert home.updated == list(range(len(home.updated))), "in the order of the layout, each once"
    for told in home.told:
        assert not isinstance(told, ev.Measured) or not told.finite or told.norm >= 0
