"""A cluster trains a job with a pipeline to the bits of the job without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.bits import bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster

PIPELINE = {"blocks_per_rank": {0: 1, 1: 1}, "schedule": "gpipe"}


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_two_pipelines_of_two_stages_have_the_bits_of_two_workers(
    tmp_path: Path, corpus: Path, tiers: int
) -> None:
    def spec(name: str, **hosts: Any) -> str:
        config = gpt_config(corpus, project_name=name, gradient_accumulation_steps=3, max_steps=4)
        return spec_of(tmp_path, config | {"multihost_config": {"enabled": True, **hosts}})

    with Cluster(tmp_path, tiers=tiers) as cluster:
        for number in range(3):
            cluster.start_worker(name=f"worker-{number}", wait=False)
        cluster.wait_workers(3)
        piped = cluster.finish(
            cluster.submit(spec("piped", num_workers=4, pipeline_parallel_config=PIPELINE))
        )
        plain = cluster.finish(cluster.submit(spec("plain", num_workers=2)))
        assert (bits(piped), piped.loss) == (bits(plain), plain.loss)
