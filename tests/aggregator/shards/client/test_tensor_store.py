"""Tensors in shards: what shards report in any order is told in the order of the layout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.tensor_store import ShardedTensorStore
from optimizer.core import events as ev
from optimizer.master_tensors import MasterTensors
from optimizer.tensor_store import TensorStoreCallbacks, TensorStoreLost
from protos import shards_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from services.errors import Failed
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, Timeouts
from services.transport.security import Security
from tests.support.cluster.bits import regression_config, write_config

CHUNKS = 5
LAYOUT = Layout.build([("w", (4 * CHUNK_ELEMENTS + 77,), True, "w", False)])
LIMIT_SECONDS = 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    path = write_config(tmp_path_factory.mktemp("job"), regression_config())
    return load_job(path, [])[0]


class Home:
    """A home over two shards that only take orders, with a job open in it."""

    def __init__(self, heartbeat_seconds: float = STANDARD_HEARTBEAT_SECONDS) -> None:
        self.told: list[ev.Measured | ev.SaveFailed | ev.OperationFailed] = []
        self.updated: list[int] = []
        self.orders: list[tuple[int, Message]] = []
        self.shards = ShardGroup(
            ["a:1", "b:1"],
            Security(),
            name="agg",
            incarnation="i",
            epoch=1,
            timeouts=Timeouts.from_heartbeat(heartbeat_seconds),
        )
        for link in self.shards.links:
            index = link.stripe.index
            vars(link)["order"] = lambda body, index=index: self.orders.append((index, body))
        events = TensorStoreCallbacks(self.told.append, lambda event: self.updated.append(event.chunk))
        self.home = ShardedTensorStore(events, self.shards, OptimizerMetrics())

    async def open(self, config: JobConfig) -> None:
        for link in self.shards.links:
            link._tensors = object()  # type: ignore[assignment]  # up, as far as anybody can see
        opening = asyncio.ensure_future(self.home.open("j", config, LAYOUT, None))
        await asyncio.sleep(0)
        for index in (1, 0):
            self.report(index, pb.PartOpened(opening=self.home._opening))
        await opening

    def report(self, shard: int, body: Any) -> None:
        """A shard says something."""
        self.shards.takers[type(body)](self.shards.links[shard], body)


def with_home(
    config: JobConfig, scenario: Callable[[Home], Any], heartbeat_seconds: float = STANDARD_HEARTBEAT_SECONDS
) -> None:
    async def run() -> None:
        home = Home(heartbeat_seconds)
        await home.open(config)
        result = scenario(home)
        if result is not None:
            await result

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_updated_chunks_are_told_of_in_the_order_of_the_layout(config: JobConfig) -> None:
    def scenario(home: Home) -> None:
        home.home.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
        home.report(1, pb.UpdatedPart(step=3, chunks=1))
        assert home.updated == []
        home.report(0, pb.UpdatedPart(step=3, chunks=1))
        assert home.updated == [0, 1]
        home.report(0, pb.UpdatedPart(step=3, chunks=3))
        assert home.updated == [0, 1, 2]
        home.report(1, pb.UpdatedPart(step=2, chunks=2))
        assert home.updated == [0, 1, 2], "of another step"
        home.report(1, pb.UpdatedPart(step=3, chunks=2))
        assert home.updated == [0, 1, 2, 3, 4]

    with_home(config, scenario)


def test_the_norm_has_the_bits_of_one_process(config: JobConfig) -> None:
    """However the blocks come in; their sums are added in the order of the layout."""
    here = MasterTensors(config, LAYOUT)
    draw = np.random.default_rng(5)
    sums = {}
    for chunk in range(CHUNKS):
        size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
        here.stage(chunk, draw.standard_normal(size, np.float32))
        sums[chunk] = here.pop_block_sums(chunk)
        here._block_sums[chunk] = sums[chunk]
    norm, finite, rate = here.measure(7)

    async def scenario(home: Home) -> None:
        order = [3, 0, 4, 2, 1]
        for chunk in order:
            home.home.stage(chunk, None)
        for chunk in order[:-1]:
            home.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums[chunk].tolist()))
        home.home.measure(ev.Measure("j", 7))
        await asyncio.sleep(0)
        assert home.told == [], "a shard has yet to say what it measured"
        home.report(1, pb.StagedChunk(chunk=1, block_sums=sums[1].tolist()))
        assert home.told == [ev.Measured("j", 7, norm, finite, rate)]

    with_home(config, scenario)


@pytest.mark.parametrize("owed", ["norm", "update"])
def test_a_shard_that_never_does_its_part_of_a_step_is_lost(config: JobConfig, owed: str) -> None:
    """Its link may live, and say so all the while."""

    async def scenario(home: Home) -> None:
        lost: asyncio.Queue[str] = asyncio.Queue()
        home.shards.on_lost.append(lost.put_nowait)
        home.shards.ready = True
        if owed == "norm":
            for chunk in range(CHUNKS):
                home.home.stage(chunk, None)
            for chunk in (0, 1, 2, 4):
                size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
                sums = [1.0] * -(-size // BLOCK_ELEMENTS)
                home.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums))
            home.home.measure(ev.Measure("j", 7))
        else:
            home.home.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
            home.report(0, pb.UpdatedPart(step=3, chunks=3))
            home.report(1, pb.UpdatedPart(step=3, chunks=1))
        assert await lost.get() == f"shard 1 of 2 (b:1): its part of the {owed} did not come within 0.6 s"

    with_home(config, scenario, heartbeat_seconds=0.005)


def test_shards_that_did_their_parts_are_not_lost(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        lost: asyncio.Queue[str] = asyncio.Queue()
        home.shards.on_lost.append(lost.put_nowait)
        home.shards.ready = True
        home.home.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
        for shard in (0, 1):
            home.report(shard, pb.UpdatedPart(step=3, chunks=3 - shard))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lost.get(), 2 * 0.6)

    with_home(config, scenario, heartbeat_seconds=0.005)


def test_what_was_staged_before_a_step_started_over_is_not_measured(config: JobConfig) -> None:
    def sums(chunk: int, each: float) -> list[float]:
        size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
        return [each] * -(-size // BLOCK_ELEMENTS)

    async def scenario(home: Home) -> None:
        for chunk in range(CHUNKS):
            home.home.stage(chunk, None)
        home.report(0, pb.StagedChunk(chunk=0, block_sums=sums(0, 9.0)))
        home.home.unstage()
        for chunk in range(CHUNKS):
            home.home.stage(chunk, None)
        home.home.measure(ev.Measure("j", 7))
        for chunk in range(1, CHUNKS):
            home.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums(chunk, 9.0)))
        for chunk in range(CHUNKS):
            await asyncio.sleep(0)
            assert home.told == [], "of the sum before, or not of all chunks"
            home.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums(chunk, 0.0)))
        (measured,) = home.told
        assert isinstance(measured, ev.Measured)
        assert measured.norm == 0.0

    with_home(config, scenario)


def test_what_a_shard_can_not_do_fails_the_job_and_names_the_shard(config: JobConfig) -> None:
    def scenario(home: Home) -> None:
        home.report(1, pb.PartBroke(opening=0, reason="of the job before"))
        assert home.told == []
        home.report(1, pb.PartBroke(opening=1, reason="no memory"))
        assert home.told == [ev.OperationFailed("j", "shard 1 of 2 (b:1): no memory")]

    with_home(config, scenario)


def test_a_job_that_a_shard_has_no_room_for_is_not_waited_for(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        opening = asyncio.ensure_future(home.home.open("j", config, LAYOUT, None))
        await asyncio.sleep(0)
        home.orders.clear()
        home.report(1, pb.PartBroke(opening=2, reason="no memory"))
        with pytest.raises(Failed, match=r"^shard 1 of 2 \(b:1\): no memory$"):
            await opening
        assert home.told == [], "whoever asked for room knows"
        assert home.orders == [(each, pb.DropPart()) for each in (0, 1)]
        home.report(0, pb.PartOpened(opening=2))  # it had begun to
        await home.open(config)

    with_home(config, scenario)


def test_a_shard_that_never_makes_room_is_lost(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        for link in home.shards.links:
            vars(link)["_timeouts"] = Timeouts.from_heartbeat(0.001)
        opening = asyncio.ensure_future(home.home.open("j", config, LAYOUT, None))
        await asyncio.sleep(0)
        home.report(0, pb.PartOpened(opening=2))
        late = r"^shard 1 of 2 \(b:1\): room for its part of job j did not come within 0\.12 s$"
        with pytest.raises(TensorStoreLost, match=late):
            await opening
        assert [link.up for link in home.shards.links] == [True, False]

    with_home(config, scenario)


def test_a_snapshot_that_is_lost_with_a_shard_is_answered(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        saved: list[object] = []
        home.shards.links[1].why_down, home.shards.links[1]._tensors = "it is gone", None
        pieces = asyncio.Event()

        async def read_part(copy: int) -> Any:
            pieces.set()
            await asyncio.Event().wait()
            yield

        vars(home.shards.links[0])["read_part"] = read_part
        home.home.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: saved.append(copies))
        await pieces.wait()
        while not home.told:
            await asyncio.sleep(0)
        assert home.told == [ev.SaveFailed("j", 1, 3, "shard 1 of 2 (b:1): it is gone")]
        assert not saved
        assert home.orders[-2:] == [(each, pb.CopyPart(copy=1)) for each in (0, 1)]

    with_home(config, scenario)


def test_weights_are_made_ready_once_for_a_version(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        home.orders.clear()
        for index in (0, 1):
            await home.home.publish(ChunkHeader(job="j", generation=2, step=3, index=index))
        assert home.orders == [(each, pb.MakeWeights(job="j", generation=2, step=3)) for each in (0, 1)]

    with_home(config, scenario)


def test_a_shard_that_is_lost_ends_the_opening_of_a_job(config: JobConfig) -> None:
    async def scenario(home: Home) -> None:
        opening = asyncio.ensure_future(home.home.open("j", config, LAYOUT, None))
        await asyncio.sleep(0)
        for call in home.shards.on_lost:
            call("shard 0 of 2 (a:1): it is gone")
        with pytest.raises(TensorStoreLost, match="it is gone"):
            await opening
        home.shards.links[0].why_down, home.shards.links[0]._tensors = "it is gone", None
        with pytest.raises(TensorStoreLost, match=r"shard 0 of 2 \(a:1\): it is gone"):
            await home.home.open("j", config, LAYOUT, None)

    with_home(config, scenario)
