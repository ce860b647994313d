"""The same bits for any number of workers, 2 and 3 tiers, and any order of arrivals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.tensors.layout import Layout
from tests.support.cluster.bits import (
    CHECKPOINT_EVERY,
    MICRO_BATCHES,
    STEPS,
    Bits,
    bits,
    gpt_config,
    llama_config,
    spec_of,
)
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually
from tests.support.cluster.harness import Cluster

MICRO_BATCHES_METRIC = "tiermesh_micro_batches_total"
OVER_THE_NETWORK = ("--no-shared-memory",)
"""Payloads must not use shared memory here, because a relay's gate would let their short messages pass."""


def run_with(cluster: Cluster, workers: int, spec: str, seed: int, steps: int = STEPS) -> Bits:
    """Run the job with this many new workers, each behind a slow relay of its own that shuffles arrivals.

    No worker gets a second version of the weights before all have the first one. So all take part, however late one is.
    """
    relays = [
        cluster.relay(cluster.aggregator, seed=100 * seed + number, gate_closed=True)
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
    state = json.loads((cluster.checkpoint(job, 0) / "state.json").read_text())
    weights_bytes = 4 * Layout.from_json(state["layout"]).elements
    for relay in relays:
        relay.let_through(int(1.2 * weights_bytes))
    eventually(
        lambda: all(each.generation for each in cluster.status().workers), "the weights of each worker"
    )
    for relay in relays:
        relay.open_gate()
    found = bits(cluster.finish(job))
    shares = [worker.metric(MICRO_BATCHES_METRIC, job=job) for worker in started]
    assert all(shares), f"a worker computed nothing: {shares}"
    assert sum(shares) == steps * MICRO_BATCHES, "no process died, so every micro-batch was computed once"
    assert workers == 1 or MICRO_BATCHES % workers, "the leases of a step must be uneven"
    for worker in started:
        worker.process.send_signal(signal.SIGTERM)
    assert [worker.ended() for worker in started] == [0] * workers
    cluster.wait_workers(0)
    return found


@pytest.mark.parametrize(
    ("tiers", "numbers"),
    [
        (2, (1, 3)),
        pytest.param(2, (2, 4), marks=pytest.mark.long),
        pytest.param(3, (1, 4), marks=pytest.mark.long),
        pytest.param(3, (2, 3), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_gives_the_same_bits(
    tmp_path: Path, tiers: int, numbers: tuple[int, ...], gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers, options=OVER_THE_NETWORK) as cluster:
        for workers in numbers:
            found = run_with(cluster, workers, gpt_spec, seed=workers)
            assert (found, found.loss) == (undisturbed, undisturbed.loss), f"{workers} workers"


@pytest.mark.long
def test_meshes_of_two_strategies_give_the_same_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(tmp_path, llama_config(corpus))
    with Cluster(tmp_path, tiers=2, options=OVER_THE_NETWORK) as cluster:
        alone, three = (
            run_with(cluster, workers, spec, seed=workers, steps=CHECKPOINT_EVERY) for workers in (1, 3)
        )
        assert (alone, alone.loss) == (three, three.loss)


@pytest.mark.parametrize("tiers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_bfloat16_weights_on_the_wire_give_the_same_bits(
    tmp_path: Path, tiers: int, corpus: Path, undisturbed: Bits
) -> None:
    """Check the bits: all workers see the same rounded weights, and sums of gradients are not rounded."""
    wire = {"weights": "bfloat16"}
    spec = spec_of(tmp_path, gpt_config(corpus, project_name="bf16-weights", wire_dtype=wire))
    with Cluster(tmp_path, tiers=tiers, options=OVER_THE_NETWORK) as cluster:
        alone, three = (run_with(cluster, workers, spec, seed=workers) for workers in (1, 3))
    assert (alone, alone.loss) == (three, three.loss)
    assert alone != undisturbed, "the weights were rounded on their way"
    assert alone.validation_loss == pytest.approx(undisturbed.validation_loss, rel=0.01)


@pytest.mark.long
def test_training_converges_with_bfloat16_in_both_directions(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    """Check that losses are similar. Their bits differ, since rounding depends on which worker computed which node."""
    spec = spec_of(tmp_path, gpt_config(corpus, project_name="bf16", wire_dtype="bf16"))
    with Cluster(tmp_path, tiers=3, options=OVER_THE_NETWORK) as cluster:
        found = run_with(cluster, 3, spec, seed=3)
        (job,) = cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs
        lines = [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job.id), timeout=LIMIT_SECONDS)]
        first = next(line for line in lines if line.startswith("Step: 1, Loss: "))
    assert found.loss < float(first.removeprefix("Step: 1, Loss: ").partition(",")[0])
    assert found.validation_loss == pytest.approx(undisturbed.validation_loss, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.parametrize("seed", range(5, 25))
def test_any_order_of_arrivals_gives_the_same_bits(
    tmp_path: Path, tiers: int, seed: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=tiers, options=OVER_THE_NETWORK) as cluster:
        for workers in (2, 3, 4):
            assert run_with(cluster, workers, gpt_spec, seed=10 * seed + workers) == undisturbed
