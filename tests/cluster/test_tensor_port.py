"""Tensors use a port of their own. If it can't be reached, they use the main port, and a log line says so."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.errors import Failed
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.harness import Cluster
from tests.support.ports import free_port

OVER_THE_NETWORK = ("--no-shared-memory",)
WARNING = "tensors go to the main port"


@dataclass
class MainPortOnly:
    """A target whose tensor port the relay doesn't know, as behind a firewall."""

    address: str
    tensor_port: int = 0


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_tensors_use_the_tensor_port(tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2, options=OVER_THE_NETWORK) as cluster:
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed
        here = f"tensors go to {cluster.to_aggregator.host}:{cluster.aggregator.tensor_port}"
        for worker in cluster.workers:  # one may join after the job
            worker.wait_log(here)
        assert f"tensors on port {cluster.aggregator.tensor_port}" in cluster.aggregator.log_text()
        if cluster.optimizer is not None:
            there = f"tensors go to {cluster.to_optimizer.host}:{cluster.optimizer.tensor_port}"
            assert there in cluster.aggregator.log_text()
        assert not any(WARNING in each.log_text() for each in cluster.daemons)


@pytest.mark.long
def test_shards_have_tensor_ports(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=2, shards=2, options=OVER_THE_NETWORK) as cluster:
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed
        for worker in cluster.workers:
            for relay, shard in zip(cluster.to_shards, cluster.shards, strict=True):
                worker.wait_log(f"tensors go to {relay.host}:{shard.tensor_port}")


@pytest.mark.long
def test_an_unreachable_tensor_port_falls_back_to_the_main_port(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    port = free_port()
    with Cluster(tmp_path, options=OVER_THE_NETWORK, aggregator_options=("--tensor-port", port)) as cluster:
        assert cluster.aggregator.tensor_port == port
        relay = cluster.relay(MainPortOnly(cluster.aggregator.address))
        worker = cluster.start_worker(aggregator=relay.address)
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        relay.cut()
        assert bits(cluster.finish(job)) == undisturbed
        warnings = [line for line in worker.log_text().splitlines() if WARNING in line]
        assert len(warnings) == 1, "once, not for every connection"
        assert f"main port {relay.address}" in warnings[0]
        assert f"{relay.host}:{port}: can't be reached (connection refused)" in warnings[0]
        assert "--tensor-port" in warnings[0]


def test_a_taken_tensor_port_may_be_free_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(tmp_path, aggregator_options=("--tensor-port", port))
        with (
            pytest.raises(
                Failed,
                match=rf"exit code 75.*tensor port 127.0.0.1:{port}: address already in use",
            ),
            cluster,
        ):
            pass
