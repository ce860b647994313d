"""A worker gets leases before it has all weights. Faults while it waits leave the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.tensors.layout import Layout
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster
from tests.support.cluster.relay import Relay


def waiting_for_weights(cluster: Cluster, spec: str) -> tuple[str, Relay, Relay]:
    """Start a job and stop it in step 1: `slow` has the whole step as leases, but only half of the weights.

    Another worker, `other`, has built the job and gets no weights yet.

    Returns:
        The job, and the relays of both workers.
    """
    slow, other = (cluster.relay(cluster.to_aggregator, gate_closed=True) for _ in range(2))
    for name, relay in (("slow", slow), ("other", other)):
        cluster.start_worker(name=name, aggregator=relay.address, wait=False)
    cluster.wait_workers(2)
    job = cluster.submit(spec)
    cluster.wait_workers(2, "ready")
    state = json.loads((cluster.checkpoint(job, 0) / "state.json").read_text())
    slow.let_through(int(1.5 * 4 * Layout.from_json(state["layout"]).elements))
    cluster.wait_step(job, 1)
    found = {each.name: each for each in cluster.status().workers}
    assert found["slow"].state == "computing", "its lease of step 1 is granted"
    assert (found["slow"].generation, found["slow"].step) == (1, 0), "its weights are still those of step 0"
    assert found["other"].state == "ready"
    return job, slow, other


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, tiers=3, options=("--no-shared-memory",))


@pytest.mark.long
def test_a_worker_killed_while_its_lease_waits(cluster: Cluster, gpt_spec: str, undisturbed: Bits) -> None:
    with cluster:
        job, _, other = waiting_for_weights(cluster, gpt_spec)
        other.open_gate()
        eventually(lambda: max(each.step for each in cluster.status().workers) == 1, "the other's weights")
        assert cluster.job(job).step == 1, "its lease is the slow worker's"
        cluster.workers[0].kill()
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.long
def test_the_aggregator_killed_in_the_middle_of_a_broadcast(
    cluster: Cluster, gpt_spec: str, undisturbed: Bits
) -> None:
    with cluster:
        job, slow, other = waiting_for_weights(cluster, gpt_spec)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        for relay in (slow, other):
            relay.open_gate()
        assert bits(cluster.finish(job)) == undisturbed
        assert cluster.status().epoch == 2


@pytest.mark.long
def test_weights_that_a_lease_waits_for_are_overtaken_by_another_generation(
    cluster: Cluster, gpt_spec: str, undisturbed: Bits
) -> None:
    with cluster:
        job, slow, other = waiting_for_weights(cluster, gpt_spec)
        assert cluster.optimizer is not None
        cluster.optimizer.kill()
        cluster.start_optimizer()
        cluster.wait(job, lambda each: each.generation == 2, "the optimizer's next generation")
        for relay in (slow, other):
            relay.open_gate()
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.long
def test_a_worker_cut_off_while_its_lease_waits(cluster: Cluster, gpt_spec: str, undisturbed: Bits) -> None:
    with cluster:
        job, slow, _ = waiting_for_weights(cluster, gpt_spec)
        slow.cut()
        slow.open_gate()
        assert bits(cluster.finish(job)) == undisturbed, "only this worker had weights"
