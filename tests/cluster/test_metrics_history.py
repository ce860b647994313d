"""The history of a real job: a row for each step, over kills of its roles, and gone with the job."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS
from tests.support.cluster.daemon import LIMIT_SECONDS, tiermesh
from tests.support.cluster.harness import Cluster


def metrics_of(cluster: Cluster, job: str, *words: str) -> list[dict[str, Any]]:
    """Return the rows that the command prints as CSV."""
    done = tiermesh("metrics", job, "--csv", *words, "--aggregator", cluster.to_aggregator.address)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.long  # tests/aggregator/history runs in `make test`
@pytest.mark.parametrize("tiers", [2, 3])
def test_each_step_has_one_row_whoever_is_killed(tmp_path: Path, gpt_spec: str, tiers: int) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2, steps=CHECKPOINT_EVERY + 2) as cluster:
        cluster.wait_workers(2)
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        cluster.aggregator.kill()
        if cluster.optimizer is not None:
            cluster.optimizer.kill()
            cluster.start_optimizer()
        cluster.start_aggregator()
        cluster.allow_steps(STEPS)
        ended = cluster.finish(job)
        rows = metrics_of(cluster, job)
        assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
        assert {int(row["generation"]) for row in rows} == {1, ended.generation}, "some were redone"
        assert float(rows[-1]["loss"]) == ended.loss
        assert float(rows[-1]["validation_loss"]) == ended.validation_loss
        for row in rows[-3:]:
            parts = ("compute_seconds", "wire_seconds", "update_seconds", "wait_seconds")
            assert sum(float(row[part]) for part in parts) == pytest.approx(
                float(row["step_seconds"]), rel=1e-4
            )
            assert row["waited_for"] in ("worker-1", "worker-2")
            assert float(row["grad_norm"]) > 0 and float(row["learning_rate"]) > 0
        (summary,) = metrics_of(cluster, job, "--points", "1", "--columns", "loss")
        losses = [float(row["loss"]) for row in rows if row["loss"]]
        assert (float(summary["loss_min"]), float(summary["loss_max"])) == (min(losses), max(losses))

        done = tiermesh(
            "prune", job, "--only", "logs", "--yes", "--aggregator", cluster.to_aggregator.address
        )
        assert done.returncode == 0 and metrics_of(cluster, job) == rows, done.stderr
        done = tiermesh("prune", job, "--yes", "--aggregator", cluster.to_aggregator.address)
        assert done.returncode == 0, done.stderr
        with pytest.raises(grpc.RpcError) as caught:
            list(cluster.stub.Metrics(jobs.MetricsRequest(job=job), timeout=LIMIT_SECONDS))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert not list(cluster.folder.rglob(f"metrics/{job}"))
