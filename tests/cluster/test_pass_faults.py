"""Fault × message of a stream between stages: the job ends in the same bits, and no lease is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster
from tests.support.cluster.relay import choose_host
from tests.support.cluster.rpc_proxy import Fault, RpcProxy

METHOD = "/tiermesh.Pipeline/Pass"
KINDS = (
    "before",
    "midway",
    "after",
    "cancelled",
    "slow",
    "duplicated",
    "reordered",
    "truncated",
    "bit-flipped",
    "stalled",
)
MATRIX = [
    (direction, kind)
    for direction in ("up", "down")
    for kind in KINDS
    if (kind, direction) != ("before", "down")  # Before the first message a fault has no direction.
]
ARRAY_BYTES = 1000
"""Size above which a message has a part of an array."""


@dataclass(frozen=True)
class _TensorPort:
    """The tensor port of a daemon, as the target of a proxy."""

    address: str


@dataclass
class PipedCluster:
    """A cluster of two workers, each of which the other reaches through a proxy.

    Attributes:
        cluster: the cluster.
        proxies: the proxies.
    """

    cluster: Cluster
    proxies: list[RpcProxy]

    def finish(self, spec: str) -> tuple[Bits, float]:
        """Run a job; return its bits and its loss."""
        job = self.cluster.finish(self.cluster.submit(spec))
        return bits(job), job.loss


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedCluster]:
    """Start the cluster. Jobs run in it one after the other, each with its fault."""
    proxies: list[RpcProxy] = []
    with Cluster(tmp_path_factory.mktemp("pass"), tiers=2) as cluster:
        for _ in range(2):
            host = choose_host()
            worker = cluster.start_worker("--advertise", host, "--no-shared-memory")
            target = _TensorPort(f"127.0.0.1:{worker.tensor_port}")
            proxies.append(RpcProxy(target, host, worker.tensor_port))
        cluster.wait_workers(2)
        try:
            yield PipedCluster(cluster, proxies)
        finally:
            for proxy in proxies:
                proxy.close()


@pytest.mark.long
def test_a_worker_that_its_neighbour_can_not_reach_is_replaced_by_a_spare(
    tmp_path: Path, spec: str, undamaged: tuple[Bits, float]
) -> None:
    with Cluster(tmp_path, tiers=2, heartbeat_seconds=0.5) as cluster:
        host = choose_host()
        first = cluster.start_worker("--advertise", host)  # where nothing listens
        for _ in range(2):
            cluster.start_worker()
        cluster.wait_workers(3)
        job = cluster.finish(cluster.submit(spec))
        assert (bits(job), job.loss) == undamaged
        assert (
            f"worker {first.name} is lost: {host}:{first.tensor_port}: not heard for"
            in cluster.workers[1].log_text()
        )


@pytest.fixture(scope="module")
def spec(corpus: Path) -> str:
    hosts = {
        "enabled": True,
        "num_workers": 2,
        "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 1}},
    }
    config = gpt_config(corpus, project_name="pass", gradient_accumulation_steps=4, max_steps=3)
    return spec_of(corpus.parent, config | {"multihost_config": hosts})


@pytest.fixture(scope="module")
def undamaged(piped: PipedCluster, spec: str) -> tuple[Bits, float]:
    """Return the result without faults."""
    return piped.finish(spec)


@pytest.mark.parametrize(
    ("direction", "kind"),
    [
        pytest.param(
            *each, marks=pytest.mark.slow if "stalled" in each else pytest.mark.long, id="-".join(each)
        )
        for each in MATRIX
    ],
)
def test_the_job_ends_in_the_same_bits(
    piped: PipedCluster, spec: str, undamaged: tuple[Bits, float], direction: str, kind: str
) -> None:
    for proxy in piped.proxies:  # the workers' stages decide which of them is called
        least_bytes = 0 if kind == "before" else ARRAY_BYTES
        proxy.strike(
            Fault(METHOD, direction, kind, passing=0 if kind == "before" else 3, least_bytes=least_bytes)
        )
    assert piped.finish(spec) == undamaged
    assert any(proxy.struck.is_set() for proxy in piped.proxies), "the fault never happened"
    logs = [daemon.log_text() for daemon in piped.cluster.daemons]
    assert not any("is lost" in text for text in logs), (
        "a stream is opened again before the neighbour is given up"
    )
