"""A layout split over shards gives the bits of a single aggregator, whatever fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aggregator.core.aggregator import AggregatorCore
from optimizer.core.optimizer import OptimizerCore
from protos import jobs_pb2 as jobs
from services.runtime.recording import replay
from tests.cluster.test_exactness import OVER_THE_NETWORK, run_with
from tests.support.cluster.bits import (
    CHECKPOINT_EVERY,
    STEPS,
    Bits,
    bits,
    gpt_config,
    llama_config,
    spec_of,
)
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import ENDED, Cluster


def sums_received(cluster: Cluster, job: str) -> list[float]:
    """Return the payload bytes that each process of the aggregator received from workers, shards first."""
    return [
        daemon.metric("tiermesh_received_bytes_total", job=job)
        for daemon in (*cluster.shards, cluster.aggregator)
    ]


@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3]
)
def test_any_number_of_shards_gives_the_same_bits(
    tmp_path: Path, shards: int, gpt_spec: str, undisturbed: Bits
) -> None:
    """Split a layout of two chunks, so that one of three shards is empty."""
    with Cluster(tmp_path, workers=2, shards=shards) as cluster:
        job = cluster.submit(gpt_spec)
        assert bits(cluster.finish(job)) == undisturbed
        *received, own = sums_received(cluster, job)
        assert all(received[:2])
        assert not any([*received[2:], own]), "no tensor passes the aggregator, or a shard that has no chunk"


@pytest.mark.long
def test_shards_of_several_chunks(tmp_path: Path, corpus: Path) -> None:
    config = gpt_config(corpus, project_name="wide", max_steps=CHECKPOINT_EVERY)
    config["transformer_config"].update(embedding_dim=256, num_heads=8, num_blocks=3)
    spec = spec_of(tmp_path, config)
    found: list[Bits] = []
    for shards in (0, 2, 3):
        with Cluster(tmp_path / f"over-{shards}", workers=2, shards=shards) as cluster:
            found.append(bits(cluster.finish(cluster.submit(spec))))
    assert found[1:] == found[:1] * 2


@pytest.mark.long
def test_any_order_of_arrivals_over_the_network_gives_the_same_bits(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    """Put each shard behind a slow relay of its own, which shuffles arrivals."""
    with Cluster(tmp_path, workers=3, shards=2, options=OVER_THE_NETWORK, delays=7) as cluster:
        cluster.wait_workers(3)
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed


@pytest.mark.long
def test_wire_types_give_the_same_bits_with_and_without_shards(tmp_path: Path, corpus: Path) -> None:
    """Use one worker, so that gradients are rounded in one way only."""
    config = gpt_config(corpus, project_name="rounded", max_steps=CHECKPOINT_EVERY, wire_dtype="bf16")
    spec = spec_of(tmp_path, config)
    found: list[Bits] = []
    for shards, options in ((0, ()), (2, ()), (2, OVER_THE_NETWORK)):
        with Cluster(tmp_path / f"{len(found)}", workers=1, shards=shards, options=options) as cluster:
            found.append(bits(cluster.finish(cluster.submit(spec))))
    assert found[1:] == found[:1] * 2


@pytest.mark.long
def test_a_recorded_run_replays_to_the_same_effects(tmp_path: Path, gpt_spec: str) -> None:
    with Cluster(tmp_path, workers=2, shards=2, recorded=True, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        cluster.to_shards[0].cut()
        cluster.finish(job)
    assert replay(tmp_path / "aggregator.record", AggregatorCore) > 100
    assert replay(tmp_path / "aggregator.record.optimizer", OptimizerCore) > 50


@pytest.mark.long
def test_meshes_of_two_strategies_give_the_same_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(tmp_path, llama_config(corpus))
    with Cluster(tmp_path / "alone", options=OVER_THE_NETWORK) as cluster:
        alone = run_with(cluster, 1, spec, seed=1, steps=CHECKPOINT_EVERY)
    with Cluster(tmp_path / "sharded", workers=2, shards=2) as cluster:
        assert bits(cluster.finish(cluster.submit(spec))) == alone


@pytest.mark.long
def test_a_worker_killed_in_the_middle_of_a_job(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=2, shards=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_workers(2, "ready", "computing")
        cluster.wait_step(job, 3)
        cluster.workers[0].kill()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1)


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_shard_killed_and_restarted(tmp_path: Path, lost: int, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=2, shards=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        cluster.shards[lost].kill()
        waits_for = f"shard {lost} of 2"
        eventually(
            lambda: waits_for in cluster.status().waiting, f"status to say that it waits for {waits_for}"
        )
        cluster.start_shard(lost)
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 2)
        cluster.workers[0].wait_log(waits_for)


@pytest.mark.long
def test_a_frozen_shard_is_dropped_and_may_return(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=1, shards=2, heartbeat_seconds=0.5, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        cluster.shards[0].freeze()
        cluster.aggregator.wait_log(": silent for")
        cluster.shards[0].thaw()
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.long
def test_the_aggregator_killed_and_restarted(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=2, shards=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 2)
        cluster.shards[0].wait_log("epoch 2")


@pytest.mark.long
def test_a_link_to_a_shard_that_breaks(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    """Break the relay that the control stream and the workers' streams share."""
    with Cluster(tmp_path, workers=2, shards=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        cluster.to_shards[1].cut()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 2)


@pytest.mark.long
@pytest.mark.parametrize("then", [0, 3])
def test_a_job_continues_with_another_number_of_shards(
    tmp_path: Path, then: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, workers=2, shards=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        cluster.aggregator.kill()
        cluster.reshard(then)
        cluster.start_aggregator()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 2)


@pytest.mark.long
def test_a_missing_shard_is_named(tmp_path: Path, gpt_spec: str) -> None:
    with Cluster(tmp_path, shards=2) as cluster:
        cluster.shards[1].kill()
        cluster.start_worker()
        cluster.submit(gpt_spec)
        cluster.workers[0].wait_log("shard 1 of 2")
        assert "shard 1 of 2" in cluster.status().waiting
        cluster.start_shard(1)
        (job,) = cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs
        assert cluster.finish(job.id).step == STEPS
        downloaded = tiermesh(
            "download", job.id, tmp_path / "got", "--aggregator", cluster.to_aggregator.address
        )
        assert downloaded.returncode == 0, downloaded.stderr


@pytest.mark.long
def test_jobs_one_after_the_other_and_one_that_is_cancelled(
    tmp_path: Path, gpt_spec: str, long_spec: str, short_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, workers=2, shards=2) as cluster:
        cancelled = cluster.submit(long_spec)
        following = [cluster.submit(spec) for spec in (gpt_spec, short_spec, gpt_spec)]
        cluster.wait_step(cancelled, 3)
        cluster.stub.Cancel(jobs.CancelRequest(job=cancelled), timeout=LIMIT_SECONDS)
        first, _, last = (cluster.finish(job) for job in following)
        assert (bits(first), bits(last)) == (undisturbed, undisturbed)


def kill_at_random(cluster: Cluster, job: str, draw: random.Random) -> None:
    """Kill daemons, or cut links to shards, six times while a job runs. A killed worker gets another name."""
    victims = ["worker", "aggregator", *(["shard", "link"] if cluster.shards else [])]
    for _ in range(6):
        events = draw.randint(1, 9)
        for number, event in enumerate(cluster.events(job)):
            if number >= events or event.job.state in ENDED:
                break
        victim = draw.choice(victims)
        if victim == "worker":
            worker = draw.choice(cluster.workers)
            worker.kill()
            cluster.workers.remove(worker)
            cluster.start_worker(name=f"worker-{draw.getrandbits(30)}", wait=False)
        elif victim == "aggregator":
            cluster.aggregator.kill()
            cluster.start_aggregator()
        elif victim == "shard":
            lost = draw.randrange(len(cluster.shards))
            cluster.shards[lost].kill()
            cluster.start_shard(lost)
        else:
            draw.choice(cluster.to_shards).cut()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_kills_at_any_time(tmp_path: Path, seed: int, gpt_spec: str, undisturbed: Bits) -> None:
    draw = random.Random(seed)
    shards = draw.randint(1, 3)
    with Cluster(tmp_path, workers=draw.randint(1, 3), shards=shards) as cluster:
        job = cluster.submit(gpt_spec)
        kill_at_random(cluster, job, draw)
        assert bits(cluster.finish(job)) == undisturbed
