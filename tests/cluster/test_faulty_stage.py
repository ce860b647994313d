"""A stage with faulty hardware: the worker that spoils gradients of others is excluded, and not the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster


@pytest.mark.long
def test_the_worker_that_spoils_the_gradients_of_the_stage_before_is_excluded(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    split = {"blocks_per_rank": {0: 1, 1: 1}, "schedule": "1f1b"}
    config = gpt_config(corpus, project_name="faulty", verify_fraction=0.5, min_workers=4)
    hosts = {"enabled": True, "num_workers": 2, "pipeline_parallel_config": split}
    module = "tests.support.cluster.faulty_stage"
    with Cluster(tmp_path / "cluster", worker_module=module) as cluster:
        for name in ("a", "faulty", "g", "h", "spare"):
            cluster.start_worker(name=name)
        cluster.wait_workers(5)  # rows are formed by name: `faulty` has the later stage of the first one
        job = cluster.submit(spec_of(tmp_path, config | {"multihost_config": hosts}))
        (exclusion,) = cluster.wait(
            job, lambda each: bool(each.excluded), "a worker is found faulty"
        ).excluded
        assert exclusion.worker == "faulty"
        # The passes that put out something: forward in stage 0, backward in stage 1 and in stage 0.
        assert "checksums of pass 2 of 3: " in exclusion.reason
        assert cluster.aggregator.metric("tiermesh_verifications_total", outcome="faulty") == 1
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert cluster.aggregator.metric("tiermesh_verifications_total", outcome="passed") > 12
