"""Jobs that take the aggregator down: it goes on, sets the job aside, and the next one ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.core.setting_aside import MOST_CRASHES, MOST_STARTS
from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import Bits, bits, regression_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.facts import has_facts

MODULES = {"aggregator": "tests.support.cluster.crashing_aggregator"}


BROKEN_SUMS = {"aggregator": "tests.support.cluster.crashing_shard"}
"""Module of the aggregator and of its shards."""


def named(folder: Path, name: str) -> str:
    """Return a small job of this name, with a checkpoint before the fatal step."""
    settings = {"project_name": name, "max_steps": 8, "model_save_interval": 2}
    return spec_of(folder, regression_config(**settings))


@pytest.mark.parametrize(
    ("tiers", "shards"), [(3, 0), *(pytest.param(2, n, marks=pytest.mark.long) for n in (0, 2))]
)
def test_a_job_that_crashes_the_core_is_set_aside(
    tmp_path: Path, tiers: int, shards: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path / "cluster", tiers=tiers, shards=shards, workers=2, modules=MODULES) as cluster:
        pid = cluster.aggregator.process.pid
        poisoned = cluster.submit(named(tmp_path, "poisoned"))
        good = cluster.submit(gpt_spec)
        failed = cluster.wait(poisoned, lambda each: each.state in ENDED, "the poisoned job ends")
        assert failed.state == jobs.FAILED
        start = (
            f"the aggregator failed {MOST_CRASHES} times while it ran this job: internal error, IndexError"
        )
        assert failed.detail.startswith(start) and failed.detail.endswith("; see its log"), failed.detail
        assert bits(cluster.finish(good)) == undisturbed
        assert cluster.aggregator.process.poll() is None and cluster.aggregator.process.pid == pid
        logged = f"job {poisoned}: the aggregator failed while it ran this job"
        assert cluster.aggregator.log_text().count(logged) == MOST_CRASHES
        lines = [
            line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=poisoned), timeout=LIMIT_SECONDS)
        ]
        assert sum("starts the job again" in line for line in lines) == MOST_CRASHES


@pytest.mark.long
def test_a_crash_that_does_not_repeat_changes_no_bits(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", workers=2, modules=MODULES) as cluster:
        unlucky = cluster.finish(cluster.submit(named(tmp_path, "unlucky")))
        assert not unlucky.HasField("crash") and unlucky.starts == 0
        plain = cluster.finish(cluster.submit(named(tmp_path, "plain")))
        assert bits(unlucky).model_sha256 == bits(plain).model_sha256
        assert unlucky.generation == plain.generation + 1, "one crash, one restart from the checkpoint"


@pytest.mark.long
def test_a_job_that_breaks_the_sums_of_a_shard_is_set_aside(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    options = ("--max-running-jobs", 1)  # the broken shard counts its errors, whatever job it has
    with Cluster(
        tmp_path / "cluster", shards=2, workers=2, modules=BROKEN_SUMS, aggregator_options=options
    ) as cluster:
        poisoned = cluster.submit(named(tmp_path, "poisoned"))
        good = cluster.submit(gpt_spec)
        failed = cluster.wait(poisoned, lambda each: each.state in ENDED, "the poisoned job ends")
        assert failed.state == jobs.FAILED
        facts = (
            f"failed {MOST_CRASHES} times while it ran this job: shard 0 of 2 ... internal error, IndexError"
        )
        assert has_facts(failed.detail, facts) and failed.detail.endswith("; see its log"), failed.detail
        assert bits(cluster.finish(good)) == undisturbed
        assert all(each.process.poll() is None for each in (cluster.aggregator, *cluster.shards))


@pytest.mark.long
def test_an_error_of_a_shard_that_does_not_repeat_changes_no_bits(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", shards=2, workers=2, modules=BROKEN_SUMS) as cluster:
        unlucky = cluster.finish(cluster.submit(named(tmp_path, "unlucky")))
        assert not unlucky.HasField("crash") and unlucky.starts == 0
        plain = cluster.finish(cluster.submit(named(tmp_path, "plain")))
        assert bits(unlucky).model_sha256 == bits(plain).model_sha256
        assert unlucky.generation > plain.generation


@pytest.mark.long
def test_a_job_that_kills_the_aggregator_is_set_aside(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path / "cluster", workers=1, modules=MODULES) as cluster:
        deadly = cluster.submit(named(tmp_path, "deadly"))
        good = cluster.submit(gpt_spec)
        for _ in range(1 + MOST_STARTS):  # the first one wrote the checkpoint of step 0
            cluster.aggregator.ended()
            cluster.start_aggregator()
        job = cluster.wait(deadly, lambda each: each.state in ENDED, "the deadly job ends")
        assert job.state == jobs.FAILED
        assert f"the aggregator died {MOST_STARTS} times soon after it started this job" in job.detail
        assert bits(cluster.finish(good)) == undisturbed
