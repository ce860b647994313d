"""Daemons of the oldest protocol version beside those of this one, as in a rolling upgrade in any order.

Jobs keep their bits. `check --cluster`, which came later, names whom to upgrade.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.protocol.versions import LINK_CHECK_PROTOCOL, PROTOCOL_MIN, STAGES_PROTOCOL
from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import eventually, tiermesh
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long

OLDER, THIS = "tests.support.cluster.older_daemon", "cli.main"
UPGRADE_STEPS = 16


@pytest.fixture(scope="module")
def piped_spec(corpus: Path) -> str:
    config = gpt_config(corpus, project_name="piped")
    pipeline = {
        "enabled": True,
        "num_workers": 2,
        "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 1}},
    }
    return spec_of(corpus.parent, config | {"multihost_config": pipeline})


def check(cluster: Cluster) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run `check --cluster`; return it with its JSON, which is empty if it was refused."""
    done = tiermesh("check", "--cluster", "--aggregator", cluster.to_aggregator.address, "--json")
    return done, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


def problems(result: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return what is wrong with each link that is not sound, by its ends."""
    return {(each["from"], each["to_role"]): each["problem"] for each in result["links"] if each["problem"]}


@pytest.mark.parametrize(
    ("layout", "peer"), [({"tiers": 3}, "aggregator"), ({"shards": 2}, "shard")], ids=str
)
def test_an_older_worker_beside_one_of_this_version(
    layout: dict[str, Any], peer: str, tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, worker_module=OLDER, **layout) as cluster:
        cluster.start_worker()
        cluster.modules["worker"] = THIS
        cluster.start_worker()
        cluster.wait_workers(2)
        done, result = check(cluster)
        old = f"worker worker-1 speaks protocol {PROTOCOL_MIN}, expected {LINK_CHECK_PROTOCOL} or more; upgrade it"
        assert done.returncode == 1
        assert old in done.stderr.splitlines()[-1]
        meshes = {each["worker"]: each["problem"] or "" for each in result["meshes"]}
        assert old in meshes["worker-1"] and not meshes["worker-2"]
        ((ends, problem),) = problems(result).items()
        assert (ends, old in problem) == (("worker-1", peer), True)
        spec = spec_of(tmp_path, gpt_config(corpus, min_workers=2))
        assert bits(cluster.finish(cluster.submit(spec))) == undisturbed
        for worker in cluster.workers:
            assert worker.metric("tiermesh_micro_batches_total") > 0, "both took part"


@pytest.mark.parametrize(
    ("older", "broken"),
    [
        ("optimizer", {("aggregator", "optimizer")}),
        ("shard", {("worker-1", "shard"), ("worker-2", "shard"), ("aggregator", "shard")}),
    ],
)
def test_older_keepers_of_tensors(
    older: str, broken: set[tuple[str, str]], tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    layout: dict[str, Any] = {"tiers": 3} if older == "optimizer" else {"shards": 2}
    with Cluster(tmp_path, workers=2, modules={older: OLDER}, **layout) as cluster:
        cluster.wait_workers(2)
        done, result = check(cluster)
        assert done.returncode == 1
        assert "the peer has no link check; upgrade it" in done.stderr.splitlines()[-1]
        found = problems(result)
        assert found.keys() == broken
        assert set(found.values()) == {"the peer has no link check; upgrade it to this version of Tiermesh"}
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed


@pytest.mark.parametrize(
    ("older", "layout", "facts"),
    [
        ("optimizer", {"tiers": 3}, ("optimizer optimizer", "upgrade it")),
        ("shard", {"shards": 2}, ("shard 1 of 2", "upgrade it")),
    ],
)
def test_a_job_with_a_pipeline_waits_for_older_keepers_of_tensors(
    older: str,
    layout: dict[str, Any],
    facts: tuple[str, ...],
    tmp_path: Path,
    piped_spec: str,
    gpt_spec: str,
    undisturbed: Bits,
) -> None:
    with Cluster(tmp_path, workers=2, modules={older: OLDER}, **layout) as cluster:
        if older == "shard":
            cluster.modules.clear()
            cluster.shards[0].kill()
            cluster.start_shard(0)
        job = cluster.submit(piped_spec)
        text = f"speaks protocol {PROTOCOL_MIN}, expected {STAGES_PROTOCOL} or more"
        waiting = eventually(lambda: text in cluster.status().waiting and cluster.status().waiting, text)
        assert all(fact in waiting for fact in facts)
        assert cluster.job(job).step == 0
        cluster.modules.clear()
        if older == "shard":
            cluster.shards[1].kill()
            cluster.start_shard(1)
        else:
            assert cluster.optimizer is not None
            cluster.optimizer.kill()
            cluster.start_optimizer()
        assert bits(cluster.finish(job)) == undisturbed


def test_an_older_aggregator_refuses_a_job_with_a_pipeline(tmp_path: Path, piped_spec: str) -> None:
    with Cluster(tmp_path, workers=2, modules={"aggregator": OLDER}) as cluster:
        with pytest.raises(grpc.RpcError) as refused:
            cluster.submit(piped_spec)
        assert "pipeline: unknown key" in str(refused.value)


@pytest.mark.parametrize("layout", [{"tiers": 3}, {"shards": 2}], ids=str)
def test_an_older_aggregator(
    layout: dict[str, Any], tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, workers=2, modules={"aggregator": OLDER, "shard": THIS}, **layout) as cluster:
        cluster.wait_workers(2)
        done, _ = check(cluster)
        assert done.returncode == 2
        assert "does not know the call Check" in done.stderr and "version" in done.stderr
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed


def test_all_roles_are_upgraded_one_by_one_while_a_job_runs(tmp_path: Path, corpus: Path) -> None:
    """Aggregator and optimizer first, as the page on upgrades says, then the workers."""
    spec = spec_of(corpus.parent, gpt_config(corpus, project_name="rolling", max_steps=UPGRADE_STEPS))
    with Cluster(tmp_path / "undisturbed", workers=1) as cluster:
        expected = bits(cluster.finish(cluster.submit(spec)))
    modules = dict.fromkeys(("worker", "aggregator", "optimizer"), OLDER)
    with Cluster(tmp_path / "upgraded", tiers=3, workers=2, modules=modules, steps=0) as cluster:
        job = cluster.submit(spec)
        cluster.modules.clear()
        assert cluster.optimizer is not None

        def make_steps() -> None:
            nonlocal steps
            steps += 3
            cluster.allow_steps(steps)
            cluster.wait_step(job, steps)

        steps = 0
        make_steps()
        cluster.aggregator.terminate()
        cluster.start_aggregator()
        make_steps()
        cluster.optimizer.terminate()
        cluster.start_optimizer()
        make_steps()
        for worker in list(cluster.workers):
            worker.terminate()
            cluster.workers.remove(worker)
            cluster.start_worker(name=worker.name)
            make_steps()
        assert bits(cluster.finish(job)) == expected
        cluster.wait_workers(2)
        assert check(cluster)[1]["passed"], "all speak the newest version"
