"""Workers that describe a layout of another size than the job's model: refused by name, and nothing is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos import cluster_pb2 as pb
from services.config.job import JobConfig
from services.tensors.layout import Layout
from tests.cluster.test_host_memory import memory_bytes
from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_files import upload_file
from tests.support.cluster.stock_peers import StockWorker

MOST_BYTES = 32_000_000
"""Memory that a lie may take, beside that of an honest job."""


@pytest.fixture(scope="module")
def spec(corpus: Path) -> str:
    return spec_of(corpus.parent, gpt_config(corpus, project_name="held", max_steps=4))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, spec: str) -> Bits:
    """Return the result of honest workers."""
    with Cluster(tmp_path_factory.mktemp("alone"), workers=2) as cluster:
        return bits(cluster.finish(cluster.submit(spec)))


def describe(liar: StockWorker, cluster: Cluster, spec: str, elements: int) -> None:
    """Get the lease of the initial weights, wait for an honest worker, and describe a layout of this size."""
    config = JobConfig.from_json(spec)
    sizes = {"elements": config.parameters.number, "evaluation_batches": config.evaluation_batches or 0}
    for kind, order in liar.orders():
        if kind == "join":
            liar.say(ready=pb.Ready(job=order.job, build=order.build, layout_hash="0" * 64, **sizes))
        elif kind == "lease":
            assert order.phase == pb.INITIALISE
            cluster.start_worker()
            cluster.wait_workers(2)
            text = Layout.build([("w", (elements,), True, "w", False)]).dumps()
            layout = upload_file(liar.channel, text.encode())
            liar.say(description=pb.Description(job=order.job, lease=order.lease, layout=layout))
            return


@pytest.mark.parametrize(
    ("tiers", "shards", "elements"),
    [
        (2, 0, 1 << 40),
        pytest.param(2, 0, 300_000_000, marks=pytest.mark.long),
        pytest.param(3, 0, 300_000_000, marks=pytest.mark.long),
        pytest.param(2, 2, 1 << 40, marks=pytest.mark.long),
        pytest.param(2, 2, 300_000_000, marks=pytest.mark.long),
    ],
)
def test_a_layout_of_another_size_is_refused_and_the_job_goes_on(
    tmp_path: Path, spec: str, alone: Bits, tiers: int, shards: int, elements: int
) -> None:
    size = JobConfig.from_json(spec).parameters.number
    with (
        Cluster(tmp_path, tiers=tiers, shards=shards) as cluster,
        StockWorker(cluster.aggregator.address, "liar") as liar,
    ):
        if shards:
            cluster.aggregator.wait_log(f"all {shards} shards are connected")
        liar.join()
        above = (cluster.aggregator, cluster.optimizer, *cluster.shards)
        roles = [each for each in above if each is not None]
        before = {each.name: memory_bytes(each, "VmRSS") for each in roles}
        job = cluster.submit(spec)
        describe(liar, cluster, spec, elements)
        reason = liar.order("leave").reason
        assert f"{elements} elements, expected the {size} parameters of the job's model" in reason
        cluster.aggregator.wait_log(f"worker liar takes no part in the job: {reason}")
        cluster.start_worker()
        grown = {each.name: memory_bytes(each, "VmHWM") - before[each.name] for each in roles}
        assert max(grown.values()) < MOST_BYTES, grown
        found = bits(
            cluster.finish(job)
        )  # the number of held-out batches is the liar's, so the loss may differ
        assert (found.model_sha256, found.optimizer_sha256) == (alone.model_sha256, alone.optimizer_sha256)
