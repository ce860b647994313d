"""Stages on several workers, and the layout over several shards: the bits of one worker, whatever fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aggregator.core.aggregator import AggregatorCore
from optimizer.core.optimizer import OptimizerCore
from services.runtime.recording import replay
from tests.cluster.test_shards import kill_at_random
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster

SPLIT = {"blocks_per_rank": {0: 1, 1: 1}, "schedule": "1f1b"}


@pytest.fixture(scope="module")
def piped_spec(corpus: Path) -> str:
    hosts = {"enabled": True, "num_workers": 2, "pipeline_parallel_config": SPLIT}
    return spec_of(corpus.parent, gpt_config(corpus, project_name="piped") | {"multihost_config": hosts})


@pytest.mark.long
@pytest.mark.parametrize("shards", [2, 3])
def test_a_shard_killed_and_restarted(
    tmp_path: Path, shards: int, piped_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, workers=2, shards=shards, recorded=True, steps=STEPS - 1) as cluster:
        job = cluster.submit(piped_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        cluster.shards[1].kill()
        cluster.start_shard(1)
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 2)
    assert replay(tmp_path / "aggregator.record", AggregatorCore) > 100
    assert replay(tmp_path / "aggregator.record.optimizer", OptimizerCore) > 50


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3])
def test_a_stage_killed_in_the_middle_of_a_job(
    tmp_path: Path, workers: int, piped_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, workers=workers, shards=2, heartbeat_seconds=1.0, steps=STEPS - 1) as cluster:
        job = cluster.submit(piped_spec)
        cluster.wait_step(job, 3)
        cluster.workers[0].kill()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_kills_at_any_time(tmp_path: Path, seed: int, piped_spec: str, undisturbed: Bits) -> None:
    draw = random.Random(seed)
    shards = draw.randint(0, 3)
    with Cluster(tmp_path, workers=draw.randint(1, 4), shards=shards) as cluster:
        job = cluster.submit(piped_spec)
        kill_at_random(cluster, job, draw)
        assert bits(cluster.finish(job)) == undisturbed
