"""Tensors in planes: reports come in any order and reach the engine in the order of the layout; waits are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from aggregator.shards.link import ShardLink
from optimizer.core import events as ev
from optimizer.schedules import learning_rate
from optimizer.tensor_store import TensorStore, TensorStoreCallbacks
from plane.errors import PlaneLost
from plane.group import PlaneGroup
from plane.master_tensors import MasterTensors, measure_gradient
from plane.plane import MAX_WAITING_CHUNKS
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from services.errors import Failed
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.security import Security
from tests.support.cluster.bits import regression_config, write_config
from tests.support.local_planes import make_local_planes

CHUNKS = 5
LAYOUT = Layout.build([("w", (4 * CHUNK_ELEMENTS + 77,), True, "w", False)])
LIMIT_SECONDS = 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    path = write_config(tmp_path_factory.mktemp("job"), regression_config())
    return load_job(path, [])[0]


async def _no_files(*_: object) -> None:
    """Stand in for sending the shard a layout, or a part of a checkpoint."""


def set_stall(link: ShardLink, seconds: float) -> None:
    """Change how long a link waits for its shard's work."""
    vars(link)["_timeouts"] = replace(STANDARD_TIMEOUTS, stall=seconds)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class StoreDialogue:
    """A tensor store over two links that record orders, without shards behind them."""

    def __init__(self) -> None:
        self.reports: list[ev.Measured | ev.SaveFailed | ev.OperationFailed] = []
        self.updated: list[int] = []
        self.orders: list[tuple[int, Message]] = []
        self.links = [
            ShardLink(
                address,
                Stripe(index, 2),
                security=Security(),
                name="agg",
                incarnation="i",
                epoch=1,
                cluster="c0ffee00c0ffee00",
                timeouts=STANDARD_TIMEOUTS,
            )
            for index, address in enumerate(("a:1", "b:1"))
        ]
        self.planes = PlaneGroup(self.links)
        for index, link in enumerate(self.links):
            vars(link)["send_order"] = lambda body, index=index: self.orders.append((index, body))
        callbacks = TensorStoreCallbacks(self.reports.append, lambda event: self.updated.append(event.chunk))
        self.store = TensorStore(callbacks, self.planes, OptimizerMetrics())

    async def open(self, config: JobConfig) -> None:
        for link in self.links:
            vars(link)["_channel"] = object()  # the link counts as up
            vars(link)["prepare"] = vars(link)["restore"] = _no_files
        opening = asyncio.ensure_future(self.store.open("j", config, LAYOUT, None))
        await _settle()
        for index in (1, 0):
            self.report(index, pb.PartOpened(opening=self.store._opening))
        await opening

    def report(self, shard: int, body: Any) -> None:
        """Give a report of a shard to its handler."""
        self.planes.report_handlers[type(body)](self.links[shard], body)


def with_store(
    config: JobConfig,
    scenario: Callable[[StoreDialogue], Any],
    stall_seconds: float = STANDARD_TIMEOUTS.stall,
) -> None:
    async def run() -> None:
        dialogue = StoreDialogue()
        await dialogue.open(config)
        for link in dialogue.links:
            set_stall(link, stall_seconds)
        result = scenario(dialogue)
        if result is not None:
            await result

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_updated_chunks_are_reported_in_the_order_of_the_layout(config: JobConfig) -> None:
    def scenario(dialogue: StoreDialogue) -> None:
        dialogue.store.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
        dialogue.report(1, pb.UpdatedPart(step=3, chunks=1))
        assert dialogue.updated == []
        dialogue.report(0, pb.UpdatedPart(step=3, chunks=1))
        assert dialogue.updated == [0, 1]
        dialogue.report(0, pb.UpdatedPart(step=3, chunks=3))
        assert dialogue.updated == [0, 1, 2]
        dialogue.report(1, pb.UpdatedPart(step=2, chunks=2))
        assert dialogue.updated == [0, 1, 2], "a report about another step"
        dialogue.report(1, pb.UpdatedPart(step=3, chunks=2))
        assert dialogue.updated == [0, 1, 2, 3, 4]

    with_store(config, scenario)


def test_the_norm_has_the_bits_of_one_process(config: JobConfig) -> None:
    """Block sums are added in the order of the layout, in whatever order they arrive."""
    single = MasterTensors(config, LAYOUT)
    draw = np.random.default_rng(5)
    sums = {}
    for chunk in range(CHUNKS):
        size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
        sums[chunk] = single.stage(chunk, draw.standard_normal(size, np.float32))
    norm, finite = measure_gradient([sums[chunk] for chunk in range(CHUNKS)])
    rate = learning_rate(config.schedule, config.optimizer.lr, 7)

    async def scenario(dialogue: StoreDialogue) -> None:
        order = [3, 0, 4, 2, 1]
        for chunk in order:
            dialogue.store.stage(chunk, None)
        for chunk in order[:-1]:
            dialogue.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums[chunk].tolist()))
        dialogue.store.measure(ev.Measure("j", 7))
        await asyncio.sleep(0)
        assert dialogue.reports == [], "the block sums of chunk 1 are missing"
        dialogue.report(1, pb.StagedChunk(chunk=1, block_sums=sums[1].tolist()))
        assert dialogue.reports == [ev.Measured("j", 7, norm, finite, rate)]

    with_store(config, scenario)


@pytest.mark.parametrize("work", ["norm", "update"])
def test_a_shard_that_never_does_its_work_for_a_step_is_lost(config: JobConfig, work: str) -> None:
    """A link can be alive although the shard's kernel thread hangs."""

    async def scenario(dialogue: StoreDialogue) -> None:
        lost: asyncio.Queue[str] = asyncio.Queue()
        dialogue.planes.on_lost.append(lost.put_nowait)
        dialogue.planes.ready = True
        if work == "norm":
            for chunk in range(CHUNKS):
                dialogue.store.stage(chunk, None)
            for chunk in (0, 1, 2, 4):
                size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
                sums = [1.0] * -(-size // BLOCK_ELEMENTS)
                dialogue.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums))
            dialogue.store.measure(ev.Measure("j", 7))
        else:
            dialogue.store.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
            dialogue.report(0, pb.UpdatedPart(step=3, chunks=3))
            dialogue.report(1, pb.UpdatedPart(step=3, chunks=1))
        reason = await lost.get()
        assert all(fact in reason for fact in ("shard 1 of 2 (b:1)", work, "within 0.6 s"))

    with_store(config, scenario, stall_seconds=0.6)


def test_shards_that_did_their_work_are_not_lost(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        lost: asyncio.Queue[str] = asyncio.Queue()
        dialogue.planes.on_lost.append(lost.put_nowait)
        dialogue.planes.ready = True
        dialogue.store.update(ev.Update("j", 3, True, 1.0, 0.1), ChunkHeader(generation=1, step=4))
        for shard in (0, 1):
            dialogue.report(shard, pb.UpdatedPart(step=3, chunks=3 - shard))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lost.get(), 2 * 0.6)

    with_store(config, scenario, stall_seconds=0.6)


def test_chunks_staged_before_a_step_started_over_are_not_measured(config: JobConfig) -> None:
    def sums(chunk: int, each: float) -> list[float]:
        size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
        return [each] * -(-size // BLOCK_ELEMENTS)

    async def scenario(dialogue: StoreDialogue) -> None:
        for chunk in range(CHUNKS):
            dialogue.store.stage(chunk, None)
        dialogue.report(0, pb.StagedChunk(chunk=0, block_sums=sums(0, 9.0)))
        dialogue.store.unstage()
        for chunk in range(CHUNKS):
            dialogue.store.stage(chunk, None)
        dialogue.store.measure(ev.Measure("j", 7))
        for chunk in range(1, CHUNKS):
            dialogue.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums(chunk, 9.0)))
        for chunk in range(CHUNKS):
            await asyncio.sleep(0)
            assert dialogue.reports == [], "reports about the former sum, or not about all chunks"
            dialogue.report(chunk % 2, pb.StagedChunk(chunk=chunk, block_sums=sums(chunk, 0.0)))
        (measured,) = dialogue.reports
        assert isinstance(measured, ev.Measured)
        assert measured.norm == 0.0

    with_store(config, scenario)


def test_a_shard_that_fails_an_order_fails_the_job_and_is_named(config: JobConfig) -> None:
    def scenario(dialogue: StoreDialogue) -> None:
        dialogue.report(1, pb.PartBroke(opening=0, reason="an order for the former job"))
        assert dialogue.reports == []
        dialogue.report(1, pb.PartBroke(opening=1, reason="no memory"))
        assert dialogue.reports == [ev.OperationFailed("j", "shard 1 of 2 (b:1): no memory")]

    with_store(config, scenario)


def test_a_shard_without_memory_for_a_job_fails_it_at_once(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        opening = asyncio.ensure_future(dialogue.store.open("j", config, LAYOUT, None))
        await _settle()
        dialogue.orders.clear()
        dialogue.report(1, pb.PartBroke(opening=2, reason="no memory"))
        with pytest.raises(Failed, match=r"^shard 1 of 2 \(b:1\): no memory$"):
            await opening
        assert dialogue.reports == [], "`open` has raised it already"
        assert dialogue.orders == [(each, pb.DropPart()) for each in (0, 1)]
        dialogue.report(0, pb.PartOpened(opening=2))  # a late answer
        await dialogue.open(config)

    with_store(config, scenario)


def test_a_shard_that_never_allocates_its_tensors_is_lost(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        set_stall(dialogue.links[1], 0.12)
        opening = asyncio.ensure_future(dialogue.store.open("j", config, LAYOUT, None))
        await _settle()
        dialogue.report(0, pb.PartOpened(opening=2))
        with pytest.raises(PlaneLost, match=r"^shard 1 of 2 \(b:1\): .* job j .* 0\.12 s"):
            await opening
        assert [link.is_up for link in dialogue.links] == [True, False]

    with_store(config, scenario)


def test_a_snapshot_that_is_lost_with_a_shard_is_reported_as_failed(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        saved: list[object] = []
        gathering = asyncio.Event()

        async def gather(*_: object) -> None:
            gathering.set()
            await asyncio.Event().wait()

        vars(dialogue.links[0])["gather"] = gather
        dialogue.store.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: saved.append(copies))
        dialogue.report(0, pb.CopiedPart(copy=1))
        await gathering.wait()
        for callback in dialogue.planes.on_lost:
            callback("shard 1 of 2 (b:1): it is gone")
        while not dialogue.reports:
            await asyncio.sleep(0)
        assert dialogue.reports == [ev.SaveFailed("j", 1, 3, "shard 1 of 2 (b:1): it is gone")]
        assert not saved
        copied, dropped = pb.CopyPart(job="j", copy=1), pb.DropCopy(copy=1)
        assert dialogue.orders[-4:] == [(each, order) for order in (copied, dropped) for each in (0, 1)]

    with_store(config, scenario)


def test_a_shard_that_can_not_copy_its_tensors_fails_the_checkpoint_alone(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        dialogue.store.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: None)
        dialogue.report(1, pb.CopiedPart(copy=1, reason="not enough memory"))
        while not dialogue.reports:
            await asyncio.sleep(0)
        assert dialogue.reports == [ev.SaveFailed("j", 1, 3, "shard 1 of 2 (b:1): not enough memory")]
        assert all(link.is_up for link in dialogue.links)

    with_store(config, scenario)


def test_a_shard_that_never_copies_its_tensors_is_lost(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        dialogue.store.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: None)
        while not dialogue.reports:
            await asyncio.sleep(0.01)
        (failed,) = dialogue.reports
        assert isinstance(failed, ev.SaveFailed)
        assert "copy 1 of its tensors did not come within 0.12 s" in failed.reason
        assert not all(link.is_up for link in dialogue.links)

    with_store(config, scenario, stall_seconds=0.12)


def test_weights_of_a_version_are_published_once(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        dialogue.orders.clear()
        for index in (0, 1):
            await dialogue.store.publish(ChunkHeader(job="j", generation=2, step=3, index=index))
        assert dialogue.orders == [(each, pb.MakeWeights(job="j", generation=2, step=3)) for each in (0, 1)]

    with_store(config, scenario)


def test_a_shard_that_is_lost_ends_the_opening_of_a_job(config: JobConfig) -> None:
    async def scenario(dialogue: StoreDialogue) -> None:
        opening = asyncio.ensure_future(dialogue.store.open("j", config, LAYOUT, None))
        await _settle()
        for callback in dialogue.planes.on_lost:
            callback("shard 0 of 2 (a:1): it is gone")
        with pytest.raises(PlaneLost, match="it is gone"):
            await opening
        dialogue.links[0].down_reason = "it is gone"
        dialogue.links[0]._channel = None
        with pytest.raises(PlaneLost, match=r"shard 0 of 2 \(a:1\): it is gone"):
            await dialogue.store.open("j", config, LAYOUT, None)

    with_store(config, scenario)


# ---- tensors in this process ----


def test_the_number_of_chunks_that_wait_for_a_checkpoint_copy_is_bounded(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = 2 * MAX_WAITING_CHUNKS
    layout = Layout.build([("w", (chunks * CHUNK_ELEMENTS,), True, "w", False)])
    copy_may_end = threading.Event()

    def wait_for_end(failpoint: str) -> None:
        assert copy_may_end.wait(LIMIT_SECONDS)

    async def scenario() -> None:
        planes = make_local_planes()
        assert planes.local is not None
        reports: asyncio.Queue[ev.Measured | ev.SaveFailed | ev.OperationFailed] = asyncio.Queue()
        saved = asyncio.Event()
        callbacks = TensorStoreCallbacks(reports.put_nowait, lambda event: None)
        store = TensorStore(callbacks, planes, OptimizerMetrics())
        await store.open("j", config, layout, None)
        monkeypatch.setattr("plane.tensor_orders.hit_failpoint", wait_for_end)
        store.snapshot(ev.Snapshot("j", 1, 1), lambda *copies: saved.set())
        staged = 0

        async def stage_all() -> None:
            nonlocal staged
            values = np.ones(CHUNK_ELEMENTS, np.float32)
            for chunk in range(chunks):
                await store.wait_for_room()
                store.stage(chunk, values)
                staged = chunk + 1

        try:
            staging = asyncio.ensure_future(stage_all())
            for _ in range(chunks):
                await asyncio.sleep(0)
            assert staged == MAX_WAITING_CHUNKS
            assert not saved.is_set()
        finally:
            copy_may_end.set()
        await staging
        await saved.wait()
        store.measure(ev.Measure("j", 1))
        assert isinstance(await reports.get(), ev.Measured), "no chunk was lost"
        store.close()
        planes.local.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
