"""Jobs that need a feature, in clusters where the aggregator has it and some of its peers are of the version before."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import regression_config, spec_of
from tests.support.cluster.daemon import eventually, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.facts import has_facts

NEWER = "tests.support.cluster.one_more_feature"
pytestmark = pytest.mark.long


def spec(folder: Path, momentum: float, **training: int) -> str:
    """Return a job that needs the feature, or does not if it has no momentum."""
    optimizer = {"type": "SGD", "lr": 0.01, "momentum": momentum}
    return spec_of(folder, regression_config(optimizer=optimizer, **training))


def test_a_worker_without_it_is_refused_by_name_and_serves_other_jobs(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", workers=1, modules={"aggregator": NEWER}) as cluster:
        cluster.modules["worker"] = NEWER
        cluster.start_worker()
        job = cluster.submit(spec(tmp_path, 0.9))
        cluster.finish(job)
        log = tiermesh("logs", job, "--aggregator", cluster.to_aggregator.address).stdout
        (line,) = [each for each in log.splitlines() if "takes no part" in each]
        lack = f"lacks feature momentum, which job {job} needs; upgrade it to Tiermesh 9.0"
        assert has_facts(line, f"worker worker-1 ... {lack}")
        cluster.finish(cluster.submit(spec(tmp_path, 0.0, min_workers=2)))


def test_an_optimizer_without_it_ends_the_job_by_name(tmp_path: Path) -> None:
    modules = {"aggregator": NEWER, "worker": NEWER}
    with Cluster(tmp_path / "cluster", tiers=3, workers=1, modules=modules) as cluster:
        job = cluster.submit(spec(tmp_path, 0.9))
        ended = eventually(
            lambda: found if (found := cluster.job(job)).state == jobs.FAILED else None, "its end"
        )
        lack = (
            f"optimizer optimizer lacks feature momentum, which job {job} needs; upgrade it to Tiermesh 9.0"
        )
        assert ended.detail == lack
        cluster.finish(cluster.submit(spec(tmp_path, 0.0)))
