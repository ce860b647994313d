"""Wire types other than float32 in real clusters: half the bytes, exact recovery, and the limits of float16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import (
    CHECKPOINT_EVERY,
    Bits,
    bits,
    gpt_config,
    llama_config,
    regression_config,
    spec_of,
)
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import ENDED, Cluster

SENT, RECEIVED = "tiermesh_sent_bytes_total", "tiermesh_received_bytes_total"


def job_log(cluster: Cluster, job: str) -> list[str]:
    """Return the lines of the job's log."""
    return [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)]


def diverging(**training: Any) -> dict[str, Any]:
    """Return a regression whose gradients and weights diverge."""
    return regression_config(
        project_name="diverging", max_steps=8, optimizer={"type": "SGD", "lr": 1e4}, **training
    )


def test_each_direction_has_its_own_type(tmp_path: Path, corpus: Path) -> None:
    sent: dict[tuple[str, str], tuple[float, float]] = {}
    with Cluster(tmp_path, tiers=2, workers=1) as cluster:
        for gradients in ("float32", "float16"):
            for weights in ("float32", "bfloat16"):
                wire = {"gradients": gradients, "weights": weights}
                name = f"{gradients}-{weights}"
                config = gpt_config(corpus, project_name=name, max_steps=3, wire_dtype=wire)
                job = cluster.submit(spec_of(tmp_path, config))
                assert cluster.finish(job).state == jobs.SUCCEEDED
                worker = cluster.workers[0]
                sent[gradients, weights] = worker.metric(SENT, job=job), worker.metric(RECEIVED, job=job)
    up, down = sent["float32", "float32"]
    # Workers send the initial weights in float32 and 3 gradients, and receive 4 versions.
    for (gradients, weights), (up_here, down_here) in sent.items():
        assert up_here / up == pytest.approx(1.0 if gradients == "float32" else (1 + 3 / 2) / 4, rel=0.01)
        assert down_here / down == pytest.approx(1.0 if weights == "float32" else 0.5, rel=0.01)


@pytest.mark.parametrize("config", [gpt_config, pytest.param(llama_config, marks=pytest.mark.long)])
def test_bfloat16_weights_cost_a_bfloat16_mesh_no_bits(
    tmp_path: Path, corpus: Path, config: Callable[..., dict[str, Any]]
) -> None:
    """Check the bits: a bfloat16 mesh rounds weights in the same way when they are loaded."""
    found: list[Bits] = []
    with Cluster(tmp_path, tiers=2, workers=1) as cluster:
        for weights in ("float32", "bfloat16"):
            sections = config(corpus, wire_dtype={"weights": weights})
            sections["training_config"]["max_steps"] = 3
            sections["device_config"] = {**sections.get("device_config", {}), "dtype": "bfloat16"}
            found.append(bits(cluster.finish(cluster.submit(spec_of(tmp_path, sections)))))
    as_float32, as_bfloat16 = found
    assert (as_float32, as_float32.loss) == (as_bfloat16, as_bfloat16.loss)


@pytest.mark.long
def test_kills_leave_the_bits_of_rounded_weights(tmp_path: Path, corpus: Path) -> None:
    config = gpt_config(corpus, project_name="rounded", wire_dtype={"weights": "bf16"})
    spec = spec_of(tmp_path, config)
    with Cluster(tmp_path / "undisturbed", tiers=2, workers=1) as cluster:
        expected = bits(cluster.finish(cluster.submit(spec)))
    with Cluster(tmp_path / "killed", tiers=3, workers=2) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, CHECKPOINT_EVERY - 1)
        cluster.workers[0].kill()
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        cluster.start_worker(wait=False)
        assert cluster.optimizer is not None
        cluster.optimizer.kill()
        cluster.start_optimizer()
        cluster.wait_step(job, 2 * CHECKPOINT_EVERY + 1)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        assert bits(cluster.finish(job)) == expected


def test_gradients_too_large_for_float16_skip_the_step(tmp_path: Path) -> None:
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        job = cluster.submit(spec_of(tmp_path, diverging(wire_dtype={"gradients": "float16"})))
        ended = cluster.finish(job)
        skipped = [line for line in job_log(cluster, job) if "skipped: the gradient is not finite" in line]
        assert skipped and all("float16, whose largest value is 65504" in line for line in skipped)
        log = cluster.workers[0].log_text()
        assert "elements are infinite in float16, whose largest value is 65504 (GRADIENT of job" in log
        assert ended.loss < float("inf"), "the weights must not change"


def test_weights_too_large_for_float16_fail_the_job(tmp_path: Path) -> None:
    with Cluster(tmp_path, tiers=3, workers=1) as cluster:
        job = cluster.submit(spec_of(tmp_path, diverging(wire_dtype={"weights": "float16"})))
        ended = cluster.wait(job, lambda each: each.state in ENDED, "its end")
        assert ended.state == jobs.FAILED
        assert "weights: chunk 0: " in ended.detail
        assert "elements are infinite in float16" in ended.detail and "set wire_dtype" in ended.detail
