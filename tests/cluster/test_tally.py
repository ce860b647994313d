"""The final weights count each micro-batch of each step once, whatever is killed (tally_worker.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import sized_config, spec_of
from tests.support.cluster.harness import Cluster
from tests.support.cluster.step_without_mesh import Float32Array
from tests.support.cluster.tally_worker import TENSOR_ELEMENTS, TENSORS, tallied

STEPS, MICRO_BATCHES, CHECKPOINT_EVERY = 60, 8, 7


def counted(job: jobs.Job) -> Float32Array:
    """Return the weights of a job's last checkpoint."""
    tensors = load_file(Path(job.checkpoint) / "model.safetensors")
    return np.concatenate([tensors[f"t{index}"] for index in range(TENSORS)])


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_each_micro_batch_is_counted_once_despite_kills(tmp_path: Path, tiers: int) -> None:
    config = sized_config(
        TENSOR_ELEMENTS,
        TENSORS,
        max_steps=STEPS,
        gradient_accumulation_steps=MICRO_BATCHES,
        model_save_interval=CHECKPOINT_EVERY,
        optimizer={"type": "SGD", "lr": 1.0},
    )
    module = "tests.support.cluster.tally_worker"
    with Cluster(
        tmp_path / "cluster", tiers=tiers, workers=2, worker_module=module, steps=STEPS - 1
    ) as cluster:
        job = cluster.submit(spec_of(tmp_path, config))
        cluster.wait_workers(2, "ready", "computing")
        for step in (10, 30):
            cluster.wait_step(job, step)
            cluster.workers.pop(0).kill()
            cluster.start_worker(name=f"worker-after-{step}")
        cluster.wait_step(job, 40)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        if cluster.optimizer is not None:
            cluster.wait_step(job, 50)
            cluster.optimizer.kill()
            cluster.start_optimizer()
        ended = cluster.finish(job)
        assert ended.generation == 2, "the optimizer died once, on its own or with the aggregator"
        np.testing.assert_array_equal(counted(ended), tallied(STEPS, STEPS, MICRO_BATCHES))
