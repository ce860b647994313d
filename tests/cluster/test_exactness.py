"""The same bits whoever computes: any number of workers, 2 and 3 tiers, any run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.bits import CHECKPOINT_EVERY, MICRO_BATCHES, STEPS, Bits, bits, llama_config, spec_of
from tests.cluster.harness import Cluster, Daemon

MICRO_BATCHES_METRIC = "tiermesh_micro_batches_total"


def run_with(cluster: Cluster, workers: int, spec: str, seed: int, steps: int = STEPS) -> Bits:
    """Run the job with that many fresh workers, each behind a slow network of its own that shuffles arrivals.

    No worker gets weights before all have built the job, so that all take part from the first steps on.
    """
    relays = [
        cluster.relay(cluster.aggregator.port, seed=100 * seed + number, gate_closed=True)
        for number in range(workers)
    ]
    started: list[Daemon] = [
        cluster.start_worker(name=f"run-{seed}-worker-{number}", aggregator=relay.address, wait=False)
        for number, relay in enumerate(relays)
    ]
    for worker in started:
        worker.ready()
    cluster.wait_workers(workers)
    job = cluster.submit(spec)
    cluster.wait_workers(workers, "ready")
    for relay in relays:
        relay.open_gate()
    found = bits(cluster.finish(job))
    shares = [worker.metric(MICRO_BATCHES_METRIC, job=job) for worker in started]
    assert all(shares), f"a worker computed nothing: {shares}"
    assert sum(shares) == steps * MICRO_BATCHES, "nobody died, so every micro-batch was computed once"
    assert workers == 1 or MICRO_BATCHES % workers, "so that no step's leases can be even"
    for worker in started:
        worker.process.terminate()
    assert [worker.ended() for worker in started] == [0] * workers
    cluster.wait_workers(0)
    return found


@pytest.mark.parametrize("tiers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers) as cluster:
        for workers in (1, 2, 3, 4):
            found = run_with(cluster, workers, gpt_spec, seed=workers)
            assert (found, found.loss) == (undisturbed, undisturbed.loss), f"{workers} workers"


def test_meshes_of_two_strategies_give_the_same_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(tmp_path, llama_config(corpus))
    with Cluster(tmp_path, tiers=2) as cluster:
        alone, three = (
            run_with(cluster, workers, spec, seed=workers, steps=CHECKPOINT_EVERY) for workers in (1, 3)
        )
        assert (alone, alone.loss) == (three, three.loss)


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.parametrize("seed", range(5, 25))
def test_any_arrivals_give_the_same_bits(
    tmp_path: Path, tiers: int, seed: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers) as cluster:
        for workers in (2, 3, 4):
            assert run_with(cluster, workers, gpt_spec, seed=10 * seed + workers) == undisturbed
