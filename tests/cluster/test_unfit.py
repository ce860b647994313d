"""A worker whose mesh can't be opened stays up, reports why, retries, and runs other jobs meanwhile."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from mesh.backend import has_device
from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import regression_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster

pytestmark = [
    pytest.mark.skipif(find_spec("ttnn") is None, reason="ttnn has no wheel for this Python"),
    pytest.mark.skipif(has_device(), reason="the mesh could be opened here"),
]


@pytest.mark.long
def test_a_worker_without_chips_is_unfit(tmp_path: Path, short_spec: str) -> None:
    config = {**regression_config(), "device_config": {"backend": "ttnn"}}
    with Cluster(tmp_path, workers=1) as cluster:
        (worker,) = cluster.workers
        job = cluster.submit(spec_of(tmp_path, config))
        cluster.wait_workers(1, "unfit")
        status = tiermesh("status", "--aggregator", cluster.to_aggregator.address)
        assert (
            "worker worker-1: unfit (device_config.mesh_shape: [1, 1] can't be opened: no chip"
            in status.stdout
        )
        logs = tiermesh("logs", job, "--aggregator", cluster.to_aggregator.address)
        assert "worker worker-1 is unfit and tries again: " in logs.stdout
        assert "`tt-smi -r`" in logs.stdout
        assert worker.metric("tiermesh_mesh_fit") == 0
        again = "unfit, trying again later"
        eventually(lambda: worker.log_text().count(again) >= 2, "a second try")
        assert cluster.job(job).state == jobs.RUNNING, "it waits for the worker"
        cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)
        cluster.finish(cluster.submit(short_spec))
        assert worker.metric("tiermesh_mesh_fit") == 1
        assert worker.terminate() == 0
