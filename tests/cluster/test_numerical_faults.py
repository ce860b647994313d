"""A gradient with a NaN is found before the COMMIT and named. The step is skipped or the job fails (nan_worker.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import regression_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.cluster.nan_worker import FAULTY_MICRO_BATCH, FAULTY_STEP

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

MODULE = "tests.support.cluster.nan_worker"
NAMED = rf"the gradient is not finite: worker worker-[12], micro-batch {FAULTY_MICRO_BATCH}, parameter \S*weight\b"


def config(**training: Any) -> dict[str, Any]:
    """Return a job of four micro-batches a step, with a checkpoint after each step."""
    return regression_config(gradient_accumulation_steps=4, model_save_interval=1, **training)


def job_log(cluster: Cluster, job: str) -> list[str]:
    """Return the lines of the job's log."""
    return [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)]


@pytest.mark.parametrize(
    ("tiers", "workers", "shards", "options", "wire"),
    [
        (2, 1, 0, (), "float32"),
        pytest.param(2, 2, 0, (), "bfloat16"),
        pytest.param(2, 2, 2, (), "float32"),
        pytest.param(3, 2, 0, ("--no-shared-memory",), "float32"),
        pytest.param(3, 1, 0, ("--no-shared-memory",), "float16"),
    ],
)
def test_the_step_is_skipped_and_the_micro_batch_named(
    tmp_path: Path, tiers: int, workers: int, shards: int, options: tuple[str, ...], wire: str
) -> None:
    with Cluster(
        tmp_path, tiers=tiers, workers=workers, shards=shards, options=options, worker_module=MODULE
    ) as cluster:
        cluster.wait_workers(workers)
        models = []
        for steps in (
            FAULTY_STEP,
            FAULTY_STEP + 1,
            FAULTY_STEP + 3,
        ):  # only the last checkpoint is certain to be written
            job = cluster.submit(spec_of(tmp_path, config(max_steps=steps, wire_dtype={"gradients": wire})))
            ended = cluster.finish(job)
            models.append(load_file(Path(ended.checkpoint) / "model.safetensors"))
        before, after, last = models
        (line,) = [line for line in job_log(cluster, job) if "(skipped" in line]
        assert re.search(rf"^Step: {FAULTY_STEP + 1}, .*\(skipped: {NAMED}\)$", line)
        assert re.search(rf"^step {FAULTY_STEP + 1}: {NAMED}$", ended.skipped)
        same_bits = wire == "float32" or workers == 1  # Rounding depends on who computed which node.
        for name, values in before.items() if same_bits else ():
            np.testing.assert_array_equal(after[name], values, "that step changed nothing")
            assert (last[name] != values).any(), "the next steps change the weights"


@pytest.mark.parametrize("tiers", [pytest.param(2), 3])
def test_the_job_fails_and_the_micro_batch_is_named(tmp_path: Path, tiers: int) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=1, worker_module=MODULE) as cluster:
        job = cluster.submit(spec_of(tmp_path, config(on_non_finite="stop")))
        ended = cluster.wait(job, lambda each: each.state in ENDED, "its end")
        assert ended.state == jobs.FAILED
        assert re.search(rf": step {FAULTY_STEP + 1}: {NAMED}", ended.detail), ended.detail
        assert ended.step == FAULTY_STEP, "earlier steps are kept"
        after = cluster.submit(spec_of(tmp_path, config(project_name="after", max_steps=2)))
        assert cluster.finish(after).step == 2, "the cluster runs the next job"
