"""Roles on one host exchange tensors through shared memory: the same bits, no leaks, and a log line."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from protos.cluster_pb2_grpc import ClusterStub
from protos.tensors_pb2 import Chunk, ChunkHeader, SharedPlaces
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import Daemon, environment, eventually
from tests.support.cluster.fork_server import ROOT
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_peers import StockWorker

LINKS = "tiermesh_shared_memory_links"


def named(daemon: Daemon) -> list[str]:
    """Return the files in /dev/shm that a daemon has mapped or open, which a leak would leave behind."""
    process = Path(f"/proc/{daemon.process.pid}")
    mapped = (process / "maps").read_text().splitlines()
    for each in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            mapped.append(str(each.readlink()))
    return [each for each in mapped if "/dev/shm/" in each]


def memory(daemon: Daemon) -> set[str]:
    """Return the inodes of all shared memory that a daemon has mapped."""
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "/memfd:tiermesh" in line}


def owned(daemon: Daemon) -> set[str]:
    """Return the inodes of arrays that a daemon owns. It maps those of others read-only."""
    lines = Path(f"/proc/{daemon.process.pid}/maps").read_text().splitlines()
    found = set()
    for line in lines:
        addresses, permissions, _, _, inode = line.split()[:5]
        start, stop = (int(each, 16) for each in addresses.split("-"))
        if "/memfd:tiermesh" in line and "w" in permissions and stop - start > 4096:
            found.add(inode)
    return found


def test_tensors_go_through_shared_memory_and_the_bits_are_the_same(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    spec = spec_of(tmp_path, gpt_config(corpus, min_workers=2))
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        job = cluster.submit(spec)
        assert bits(cluster.finish(job)) == undisturbed
        assert cluster.aggregator.metric(LINKS) == 3, "two workers and the optimizer"
        assert [worker.metric(LINKS) for worker in cluster.workers] == [1, 1]
        assert cluster.optimizer is not None
        for daemon in (*cluster.workers, cluster.optimizer):
            assert memory(daemon) & memory(cluster.aggregator)
        assert not any(named(each) for each in (*cluster.workers, cluster.aggregator, cluster.optimizer))
        for daemon, peer in (
            (cluster.workers[0], "aggregator aggregator"),
            (cluster.aggregator, "worker worker-2"),
            (cluster.aggregator, "optimizer optimizer"),
            (cluster.optimizer, "aggregator aggregator"),
        ):
            assert f"tensors of {peer} through shared memory" in daemon.log_text()


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_switched_off_it_gives_the_same_bits(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int
) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2, options=("--no-shared-memory",)) as cluster:
        job = cluster.submit(gpt_spec)
        assert bits(cluster.finish(job)) == undisturbed
        assert cluster.aggregator.metric(LINKS) == 0
        assert not memory(cluster.aggregator)
        assert "over gRPC: the peer offers no shared memory" in cluster.aggregator.log_text()
        cluster.workers[0].wait_log("over gRPC: shared memory is switched off")


@pytest.mark.long
def test_stages_share_their_pieces_of_chunks(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    split = {"blocks_per_rank": {0: 1, 1: 1}, "schedule": "1f1b"}
    hosts = {"enabled": True, "num_workers": 2, "pipeline_parallel_config": split}
    spec = spec_of(tmp_path, gpt_config(corpus, project_name="piped") | {"multihost_config": hosts})
    with Cluster(tmp_path, workers=2, steps=STEPS - 1) as cluster:
        cluster.wait_workers(2)
        job = cluster.submit(spec)
        cluster.wait_step(job, 2)
        for worker in cluster.workers:
            assert memory(cluster.aggregator) & owned(worker), "its sums"
            assert memory(worker) & owned(cluster.aggregator), "the weights"
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.long
def test_killed_daemons_leave_no_shared_memory(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, steps=STEPS - 1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)

        gone: set[str] = set()

        def kill(daemon: Daemon) -> None:
            gone.update(owned(daemon))
            daemon.kill()

        kill(cluster.workers[0])
        cluster.start_worker()
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        assert cluster.optimizer is not None
        kill(cluster.optimizer)
        cluster.start_optimizer()
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        kill(cluster.aggregator)
        cluster.start_aggregator()
        assert bits(cluster.finish(job)) == undisturbed
        eventually(lambda: cluster.aggregator.metric(LINKS) == 3, "links to both workers and the optimizer")
        assert len(gone) >= 3
        for daemon in (*cluster.workers[1:], cluster.aggregator, cluster.optimizer):
            eventually(
                lambda each=daemon: not memory(each) & gone, f"{daemon.name} to let go of dead roles' memory"
            )


@pytest.mark.long
def test_a_worker_that_the_aggregator_cannot_see_sends_its_payloads(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    """Run the worker in its own process id namespace, as in a container."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("process id namespaces can't be made here")
    with Cluster(tmp_path, tiers=2) as cluster:
        command = [
            *apart, sys.executable, "-m", "cli.main", "worker", "--name", "apart", "--exit-with-parent",
            "--aggregator", cluster.aggregator.address, "--state-dir", str(tmp_path / "apart"),
        ]  # fmt: skip
        log = tmp_path / "apart.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=output, stderr=output
            ) as process,
        ):
            try:
                assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed
                assert cluster.aggregator.metric(LINKS) == 0
                assert "tensors of worker apart over gRPC: its memory" in cluster.aggregator.log_text()
                assert "over gRPC: the peer can't read this process's memory" in log.read_text()
            finally:
                process.kill()


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        ("nonsense", "metadata tiermesh-shared-memory: 'nonsense', expected a process id"),
        (None, "chunk 0: shared memory: not agreed on for this stream; send the payload"),
    ],
)
def test_false_shared_memory_metadata_is_refused(tmp_path: Path, offer: str | None, reason: str) -> None:
    with Cluster(tmp_path) as cluster, StockWorker(cluster.aggregator.address, "liar") as worker:
        worker.join()
        if offer is not None:
            metadata = {"tiermesh_incarnation": worker.incarnation, "tiermesh_shared_memory": offer}
            stream = worker._stream(ClusterStub(worker.channel).Exchange, **metadata)
        else:
            stream = worker.data
        stream.send(Chunk(header=ChunkHeader(job="x", epoch=worker.epoch), shared=SharedPlaces(sequence=1)))
        code, details = stream.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert reason in details
