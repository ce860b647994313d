"""`tiermesh check --cluster` on real daemons: all links are measured, and whatever is wrong is named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from services.jobs.fields import cluster_fields
from services.version import tiermesh_version
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long


def check(cluster: Cluster, *options: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the command; return it with its JSON, which is empty if it was refused."""
    wait_for_workers(cluster, len(cluster.workers))
    if cluster.tiers == 3:
        eventually(lambda: cluster.status().optimizer == "optimizer", "the optimizer's connection")
    done = tiermesh("check", "--cluster", "--aggregator", cluster.to_aggregator.address, "--json", *options)
    found = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return done, found


def wait_for_workers(cluster: Cluster, count: int) -> None:
    eventually(lambda: len(cluster.status().workers) == count, f"{count} workers")


def wait_for_measurements(cluster: Cluster, moving: list[str]) -> None:
    """Wait until each process's round trip is measured by heartbeats, and the traffic of these that move tensors."""

    def all_measured() -> bool:
        links = cluster_fields(cluster.status())["links"]
        assert {each["from"] for each in links} >= {*moving}
        seconds = [each["round_trip_seconds"] for each in links]
        moved = [each["received_bytes_per_second"] for each in links if each["from"] in moving]
        return all(each is not None and 0 < each < 5 for each in seconds) and None not in moved

    eventually(all_measured, "measurements of every process")
    fields = cluster_fields(cluster.status())
    peers = [*fields["workers"], *fields["shards"]]
    assert {each["version"] for each in peers} == {fields["version"]} == {tiermesh_version()}
    assert {each["host"] for each in fields["workers"]} == {"127.0.0.1"}


def ends(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["from_role"], each["to_role"]) for each in result["links"]]


@pytest.mark.parametrize("options", [(), ("--no-shared-memory",)])
def test_every_link_of_three_tiers(tmp_path: Path, options: tuple[str, ...], short_spec: str) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, options=options) as cluster:
        done, result = check(cluster, "--mesh-shape", "2x2", "--backend", "emulator")
        assert (done.returncode, result["passed"]) == (0, True), done.stderr
        between = [("worker", "worker")] * 2
        assert ends(result) == [("worker", "aggregator")] * 2 + between + [("aggregator", "optimizer")]
        for link in result["links"]:
            speeds = [link["up_bytes_per_second"], link["down_bytes_per_second"]]
            assert link["latency_seconds"] > 0 and not link["main_port"]
            if (link["from_role"], link["to_role"]) in between:
                assert speeds == [None, None], "whether it can be reached"
            else:
                assert min(speeds) > 0 and link["shared_memory"] == (not options)
        assert sorted(each["worker"] for each in result["meshes"]) == ["worker-1", "worker-2"]
        for mesh in result["meshes"]:
            assert (mesh["mesh_shape"], [axis["passed"] for axis in mesh["axes"]]) == ([2, 2], [True, True])
        assert cluster.finish(cluster.submit(short_spec)).state == jobs.SUCCEEDED, "no trace of it is left"
        wait_for_measurements(cluster, ["worker-1", "worker-2", "optimizer"])
        assert check(cluster)[1]["passed"], "after a job, too"


def test_every_link_to_shards(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path, workers=2, shards=2) as cluster:
        assert cluster.finish(cluster.submit(short_spec)).state == jobs.SUCCEEDED
        wait_for_measurements(cluster, ["worker-1", "worker-2"])
        done, result = check(cluster)
        assert (done.returncode, result["passed"]) == (0, True), done.stderr
        between = [("worker", "worker")] * 2
        assert ends(result) == [("worker", "shard")] * 4 + between + [("aggregator", "shard")] * 2


def test_a_worker_that_others_can_not_reach_is_named(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=1) as cluster:
        cluster.start_worker("--advertise", "127.0.0.9")
        done, result = check(cluster)
        assert done.returncode == 1
        failed = [(each["from"], each["to"]) for each in result["links"] if not each["passed"]]
        assert failed == [("worker-1", "worker-2")]
        last = done.stderr.splitlines()[-1]
        assert "127.0.0.9:" in last and "--advertise" in last and len(last) < 400


def test_a_running_job_is_named_and_goes_on(tmp_path: Path, long_spec: str) -> None:
    with Cluster(tmp_path, workers=1) as cluster:
        job = cluster.submit(long_spec)
        cluster.wait(job, lambda now: now.step > 0, "its first step")
        done, _ = check(cluster)
        assert done.returncode == 75
        assert f"all workers serve jobs ({job})" in done.stderr
        step = cluster.job(job).step
        cluster.wait(job, lambda now: now.step > step + 1, "further steps")


def test_a_wrong_sum_is_named(tmp_path: Path) -> None:
    failpoints = {"optimizer": "link-check.summed=flip@1"}
    with Cluster(tmp_path, tiers=3, workers=1, failpoints=lambda role: failpoints.get(role, "")) as cluster:
        done, result = check(cluster)
        assert done.returncode == 1
        assert [each["wrong_values"] for each in result["links"]] == [False, True]
        last = done.stderr.splitlines()[-1]
        assert "aggregator aggregator -> optimizer" in last
        assert "1 of 16384 values of chunk 0 are wrong" in last
        assert check(cluster)[1]["passed"], "the failpoint is over"


@pytest.mark.parametrize(
    ("role", "point"),
    [
        ("worker", "worker.mesh-check"),
        ("aggregator", "link-check.summed"),
        ("optimizer", "link-check.summed"),
    ],
)
def test_a_process_that_dies_in_the_middle_is_named(
    tmp_path: Path, role: str, point: str, short_spec: str
) -> None:
    with Cluster(
        tmp_path, tiers=3, workers=1, failpoints=lambda of: f"{point}=kill@1" if of == role else ""
    ) as cluster:
        done, result = check(cluster)
        assert done.returncode == 1, done.stderr
        last = done.stderr.splitlines()[-1]
        assert len(last) < 400
        if role == "aggregator":
            assert "aggregator" in last
            return
        assert not result["passed"]
        assert ("worker-1" if role == "worker" else "optimizer") in last
        cluster._failpoints = None
        cluster.start_worker() if role == "worker" else cluster.start_optimizer()
        assert cluster.finish(cluster.submit(short_spec)).state == jobs.SUCCEEDED, "the queue goes on"


def test_a_job_waits_for_the_end_of_a_check(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path, workers=2, options=("--no-shared-memory",)) as cluster:
        wait_for_workers(cluster, 2)
        checking = cluster.stub.Check(jobs.CheckRequest(backend="auto"), timeout=LIMIT_SECONDS)
        assert next(checking).plan.links == 4
        job = cluster.submit(short_spec)
        assert not any(each.job for each in cluster.status().workers)
        other = tiermesh("check", "--cluster", "--aggregator", cluster.to_aggregator.address)
        assert (other.returncode, "another check" in other.stderr) == (75, True)
        assert sum(each.HasField("link") for each in checking) == 4
        assert cluster.finish(job).state == jobs.SUCCEEDED


def test_a_caller_that_leaves_ends_the_check(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path, workers=2, options=("--no-shared-memory",)) as cluster:
        wait_for_workers(cluster, 2)
        checking = cluster.stub.Check(jobs.CheckRequest(backend="auto"), timeout=LIMIT_SECONDS)
        next(checking)
        checking.cancel()
        cluster.aggregator.wait_log("the check has ended")
        assert cluster.finish(cluster.submit(short_spec)).state == jobs.SUCCEEDED


def test_without_workers_there_is_nothing_to_check(tmp_path: Path) -> None:
    with Cluster(tmp_path, tiers=3) as cluster:
        done, _ = check(cluster)
        assert done.returncode == 75
        assert "no worker is connected" in done.stderr


@pytest.mark.parametrize(
    ("options", "fact"),
    [(("--backend", "gpu"), "expected one of auto, ttnn, emulator"), (("--mesh-shape", "0x9"), "mesh_shape")],
)
def test_impossible_meshes_are_refused(tmp_path: Path, options: tuple[str, ...], fact: str) -> None:
    with Cluster(tmp_path) as cluster:
        done, _ = check(cluster, *options)
        assert done.returncode == 2
        assert fact in done.stderr
