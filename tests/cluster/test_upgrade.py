"""A rolling upgrade: workers are replaced one by one by workers of other code, while a job runs."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.runtime.launcher import DaemonProcess, spawn_subprocess
from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import environment, eventually, tiermesh
from tests.support.cluster.harness import Cluster

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "aggregator",
    "cli",
    "compute",
    "configs",
    "mesh",
    "native",
    "optimizer",
    "plane",
    "protos",
    "services",
    "training",
    "worker",
)
CHANGED = Path("training/ops/normalisation.py")
pytestmark = pytest.mark.long

COMEBACK = ("--timeout", "comeback=6")
STEPS = 8


@pytest.fixture(scope="module")
def new_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of Tiermesh in which layer norms have another epsilon."""
    tree = tmp_path_factory.mktemp("new-code")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    source = (tree / CHANGED).read_text()
    assert source.count("= 1e-5") == 1
    (tree / CHANGED).write_text(source.replace("= 1e-5", "= 2e-5"))
    return tree


class Workers:
    """Workers of a copied tree, each a process of its own."""

    def __init__(self, cluster: Cluster, tree: Path) -> None:
        self._cluster = cluster
        self._spawn = partial(
            spawn_subprocess, environment={**environment(), "PYTHONPATH": str(tree)}, folder=tree
        )
        self._started: list[DaemonProcess] = []

    def start(self, name: str) -> DaemonProcess:
        folder = self._cluster.folder
        options = [
            "--aggregator",
            self._cluster.to_aggregator.address,
            "--state-dir",
            str(folder / "workers"),
        ]
        worker = DaemonProcess("worker", name, folder, options, spawn=self._spawn).start()
        self._started.append(worker)
        eventually(worker.is_ready, f"{name} to be ready")
        return worker

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._started:
            worker.close()


def spec(corpus: Path, **training: object) -> str:
    """Return a job whose only checkpoint before its end is that of step 0, which does not depend on the change."""
    config = gpt_config(
        corpus, project_name="upgraded", model_save_interval=10_000, max_steps=STEPS, **training
    )
    return spec_of(corpus.parent, config)


def new_code_alone(folder: Path, tree: Path, job: str) -> Bits:
    with Cluster(folder) as cluster, Workers(cluster, tree) as workers:
        workers.start("worker-1")
        return bits(cluster.finish(cluster.submit(job)))


def test_workers_are_replaced_one_by_one(tmp_path: Path, corpus: Path, new_tree: Path) -> None:
    job_spec = spec(corpus)
    with (
        Cluster(
            tmp_path / "upgrade", workers=2, heartbeat_seconds=0.5, aggregator_options=COMEBACK, steps=2
        ) as cluster,
        Workers(cluster, new_tree) as workers,
    ):
        job = cluster.submit(job_spec)
        cluster.wait_step(job, 2)
        first, second = cluster.workers
        assert first.terminate() == 0
        workers.start("worker-1")
        cluster.wait_workers(1, "waiting")
        status = tiermesh("status", "--aggregator", cluster.to_aggregator.address).stdout
        assert "worker worker-1: waiting (its code is " in status
        cluster.allow_steps(4)
        cluster.wait_step(job, 4)  # the worker of the old code goes on
        assert not cluster.job(job).code_changes
        assert second.terminate() == 0
        workers.start("worker-2")
        changed = cluster.wait(
            job, lambda each: bool(each.code_changes) and each.generation > 1, "the change"
        )
        (change,) = changed.code_changes
        assert change.before != change.after and (change.generation, change.step) == (1, 0)
        ended = cluster.finish(job)
        log = tiermesh("logs", job, "--aggregator", cluster.to_aggregator.address).stdout
        assert f"code {change.before[:12]} -> {change.after[:12]}" in log
        upgraded = bits(ended)
    assert upgraded == new_code_alone(tmp_path / "new", new_tree, job_spec)


def test_exact_false_accepts_both(tmp_path: Path, corpus: Path, new_tree: Path) -> None:
    config = gpt_config(corpus, project_name="mixed", exact=False)
    with (
        Cluster(tmp_path, workers=1, heartbeat_seconds=0.5, aggregator_options=COMEBACK) as cluster,
        Workers(cluster, new_tree) as workers,
    ):
        workers.start("worker-2")
        job = cluster.submit(spec_of(corpus.parent, config))
        cluster.wait_workers(2, "ready", "computing")
        assert cluster.job(job).state == jobs.RUNNING or cluster.finish(job)
        assert not cluster.job(job).code_changes
