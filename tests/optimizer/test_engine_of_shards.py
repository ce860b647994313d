"""An engine whose tensors are in two shards: a step from its sum to new weights, and shards that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from optimizer.core import events as ev
from optimizer.schedules import clip_coefficient, gradient_norm, learning_rate
from plane.master_tensors import MasterTensors
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.config.job import JobConfig
from services.config.load import load_job
from services.protocol.plan import JobPlan
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.cluster.bits import regression_config, write_config
from tests.support.dialogues.sharded_engine import CHUNKS, LAYOUT, ShardedEngine, block_sums

LIMIT_SECONDS = 30
STEP = 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    path = write_config(tmp_path_factory.mktemp("job"), regression_config())
    return load_job(path, [])[0]


def with_engine(
    folder: Path, scenario: Callable[[ShardedEngine], Awaitable[None]], *, plan: JobPlan, stall: float = 60.0
) -> None:
    async def run() -> None:
        dialogue = ShardedEngine(folder, plan, STEP, stall)
        try:
            await scenario(dialogue)
        finally:
            dialogue.engine.close()

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_a_step_goes_from_the_sum_to_new_weights(tmp_path: Path, config: JobConfig) -> None:
    """Block sums come in any order, and give the bits of one process; weights are sent in the order of the layout."""
    single = MasterTensors(config, LAYOUT)
    draw = np.random.default_rng(5)
    sums = {}
    for chunk in range(CHUNKS):
        size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
        sums[chunk] = single.stage(chunk, draw.standard_normal(size, np.float32)).tolist()
    plan = config.plan()
    norm = gradient_norm(each for chunk in range(CHUNKS) for each in sums[chunk])
    rate = learning_rate(plan.schedule, plan.learning_rate, STEP)

    async def scenario(dialogue: ShardedEngine) -> None:
        for chunk in (3, 0, 4, 2, 1):
            dialogue.arrive(chunk)
        staged = [(chunk % 2, pb.StageChunks(job="j", chunks=[chunk])) for chunk in (3, 0, 4, 2, 1)]
        assert dialogue.take_orders() == staged
        for chunk in (4, 3, 0, 2):
            dialogue.staged(chunk, sums[chunk])
        assert dialogue.sent == dialogue.orders == [], "the block sums of chunk 1 are missing"
        dialogue.staged(1, sums[1])
        (commit,) = dialogue.sent
        assert isinstance(commit, cluster.Commit)
        assert (commit.applied, commit.grad_norm, commit.learning_rate) == (True, norm, rate)
        update = pb.UpdatePart(
            job="j",
            epoch=1,
            generation=2,
            step=STEP,
            applied=True,
            grad_norm=norm,
            learning_rate=rate,
            clip=clip_coefficient(norm, plan.clip_grad_norm),
        )
        assert dialogue.take_orders() == [(0, update), (1, update)]
        progress = [(1, 1, 0), (0, 1, 2), (0, 3, 3), (1, 1, 3), (1, 2, 5)]
        for shard, chunks, updated in progress:
            dialogue.report(shard, pb.UpdatedPart(job="j", step=STEP - 1, chunks=2))
            dialogue.report(shard, pb.UpdatedPart(job="j", step=STEP, chunks=chunks))
            assert dialogue.updated_chunks == updated
        labels = {"job": "j", "role": "optimizer"}
        assert dialogue.metrics.registry.get_sample_value("tiermesh_update_seconds_count", labels) == 1

    with_engine(tmp_path, scenario, plan=plan)


def test_chunks_staged_before_a_step_started_over_are_not_measured(tmp_path: Path) -> None:
    async def scenario(dialogue: ShardedEngine) -> None:
        dialogue.arrive(*range(CHUNKS))
        dialogue.staged(0, block_sums(0, 9.0))
        dialogue.engine.feed(ev.Ordered(1, cluster.StartOver(job="j", generation=2)))
        dialogue.arrive(*range(CHUNKS), generation=3)
        for chunk in range(1, CHUNKS):
            dialogue.staged(chunk, block_sums(chunk, 9.0))
        for chunk in range(CHUNKS):
            assert not dialogue.commits, "reports about the former sum, or not about all chunks"
            dialogue.staged(chunk, block_sums(chunk, 0.0))
        assert [commit.grad_norm for commit in dialogue.commits] == [0.0]

    with_engine(tmp_path, scenario, plan=JobPlan(steps=9, micro_batches=2))


@pytest.mark.parametrize("work", ["norm", "update"])
def test_a_shard_that_never_does_its_work_for_a_step_is_lost(tmp_path: Path, work: str) -> None:
    """A link can be alive although the shard's kernel thread hangs."""

    async def scenario(dialogue: ShardedEngine) -> None:
        dialogue.arrive(*range(CHUNKS))
        for chunk in (0, 1, 2, 4) if work == "norm" else range(CHUNKS):
            dialogue.staged(chunk, block_sums(chunk))
        if work == "update":
            dialogue.report(0, pb.UpdatedPart(job="j", step=STEP, chunks=3))
            dialogue.report(1, pb.UpdatedPart(job="j", step=STEP, chunks=1))
        reason = await dialogue.lost.get()
        assert all(fact in reason for fact in ("shard 1 of 2 (b:1)", work, "within 0.6 s"))

    with_engine(tmp_path, scenario, plan=JobPlan(steps=9, micro_batches=2), stall=0.6)


def test_shards_that_did_their_work_are_not_lost(tmp_path: Path) -> None:
    async def scenario(dialogue: ShardedEngine) -> None:
        dialogue.arrive(*range(CHUNKS))
        for chunk in range(CHUNKS):
            dialogue.staged(chunk, block_sums(chunk))
        for shard in (0, 1):
            dialogue.report(shard, pb.UpdatedPart(job="j", step=STEP, chunks=3 - shard))
        dialogue.arrive(0, step=STEP + 1)
        dialogue.staged(0, block_sums(0))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(dialogue.lost.get(), 2 * 0.6)

    with_engine(tmp_path, scenario, plan=JobPlan(steps=9, micro_batches=2), stall=0.6)


@pytest.mark.parametrize(
    ("sums", "text"),
    [
        ([1.0] * 7, "StagedChunks, chunk 2: 7 block sums, expected 8"),
        ([1.0] * 7 + [-2.0], "sum of squares -2, expected"),
    ],
)
def test_a_shard_with_impossible_block_sums_is_lost(tmp_path: Path, sums: list[float], text: str) -> None:
    async def scenario(dialogue: ShardedEngine) -> None:
        dialogue.arrive(*range(CHUNKS))
        dialogue.staged(2, sums)
        reason = await dialogue.lost.get()
        assert reason.startswith("shard 0 of 2 (a:1): ") and text in reason

    with_engine(tmp_path, scenario, plan=JobPlan(steps=9, micro_batches=2))


def test_reports_about_a_former_job_are_ignored(tmp_path: Path) -> None:
    async def scenario(dialogue: ShardedEngine) -> None:
        dialogue.arrive(*range(CHUNKS))
        dialogue.report(1, pb.StagedChunks(job="former", chunks=[pb.StagedChunk(chunk=1, block_sums=[9.0])]))
        for chunk in range(CHUNKS):
            dialogue.staged(chunk, block_sums(chunk, 0.0))
        assert [commit.grad_norm for commit in dialogue.commits] == [0.0]
        assert dialogue.lost.empty()

    with_engine(tmp_path, scenario, plan=JobPlan(steps=9, micro_batches=2))
