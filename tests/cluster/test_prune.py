"""Pruning through the command, and by the retention: what is needed stays, the rest goes, whichever daemon dies."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import jobs_pb2 as jobs
from protos.cluster_pb2 import CheckpointRequest
from protos.files_pb2 import ReadFileRequest
from tests.support.cluster.bits import STEPS, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_files import open_read

TIERS = pytest.mark.parametrize("tiers", [2, pytest.param(3, marks=pytest.mark.long)])


def prune(cluster: Cluster, *words: object) -> tuple[int, dict[str, Any], str]:
    """Run the command; return its exit code, result and errors."""
    done = tiermesh("prune", *words, "--json", "--aggregator", cluster.to_aggregator.address)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def log_of(cluster: Cluster, job: str) -> Path:
    return cluster.folder / "aggregator-state" / "logs" / f"{job}.jsonl"


def is_known(cluster: Cluster, job: str) -> bool:
    try:
        cluster.stub.Get(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS, wait_for_ready=True)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND
        return False
    return True


def assert_gone(cluster: Cluster, job: str) -> None:
    """Check that nothing of a job is left, under any name."""
    assert not is_known(cluster, job)
    eventually(
        lambda: not [path for path in cluster.folder.rglob(f"*{job}*") if "files" not in path.parts],
        f"the end of the files of {job}",
    )
    with closing(sqlite3.connect(cluster.folder / "aggregator-state" / "queue.sqlite")) as queue:
        eventually(lambda: queue.execute("SELECT * FROM removals").fetchall() == [], "the end of the removal")
        assert (
            queue.execute("SELECT count(*) FROM specs").fetchone()
            == queue.execute("SELECT count(*) FROM jobs").fetchone()
        )


@pytest.mark.long
@TIERS
def test_what_is_needed_stays_and_the_rest_goes(tmp_path: Path, corpus: Path, tiers: int) -> None:
    linked, read, last = 1, 2, STEPS
    with Cluster(tmp_path / "cluster", tiers=tiers, workers=1, steps=linked) as cluster:
        job = cluster.submit(spec_of(tmp_path, gpt_config(corpus, model_save_interval=1)))
        cluster.checkpoint(job, linked)
        cluster.allow_steps(read)
        cluster.checkpoint(job, read)
        cluster.finish(job)
        saved = cluster.saved_steps(job)
        link = tmp_path / "best"  # a path that does not name the job
        link.symlink_to(cluster.checkpoint(job, linked))
        readers = []
        for start in (cluster.checkpoint(job, read), link):
            config = gpt_config(corpus, project_name=f"from-{start.name}", max_steps=100_000)
            config["transformer_config"] |= {"model_path": str(start)}
            readers.append(cluster.submit(spec_of(tmp_path, config)))

        code, result, errors = prune(cluster, job, "--yes")
        assert (
            code == 1
            and f"job {job}: not pruned: job {readers[1]} starts from its checkpoint of step {linked}"
            in errors
        )
        assert result["kept"][0]["job"] == job and is_known(cluster, job)
        for word in (readers[0], readers[1]):
            code, _, errors = prune(cluster, job, word, "--yes")
            assert code == 2 and f"job {word} is" in errors and "only jobs that have ended" in errors
        code, _, errors = prune(cluster, job, "no-such-job", "--yes")
        assert code == 2 and "no job 'no-such-job'" in errors

        code, result, _ = prune(cluster, "--keep", "0", "--only", "checkpoints", "--dry-run")
        assert code == 0 and result["pruned"][0]["checkpoints"] == len(saved) - 3
        assert cluster.saved_steps(job) == saved
        code, result, errors = prune(cluster, "--keep", "0", "--only", "checkpoints", "--yes")
        assert code == 0, errors
        assert cluster.saved_steps(job) == [linked, read, last]
        assert "checkpoints pruned by" in log_of(cluster, job).read_text()

        cluster.wait_step(readers[0], 1)  # it has found its start
        for reader in readers:
            cluster.stub.Cancel(jobs.CancelRequest(job=reader), timeout=LIMIT_SECONDS)
        assert prune(cluster, "--keep", "0", "--only", "logs", "--yes")[0] == 0
        assert not log_of(cluster, job).exists() and is_known(cluster, job)

        def is_pruned() -> bool:
            code, result, errors = prune(cluster, "--keep", "0", "--yes")
            assert code == 0, errors
            return not result["kept"]  # the optimizer may still close a cancelled job

        eventually(is_pruned, "the end of all jobs")
        for each in (job, *readers):
            assert_gone(cluster, each)
        assert cluster.aggregator.metric("tiermesh_pruned_jobs_total") == 3
        assert cluster.aggregator.metric("tiermesh_pruned_bytes_total") > 0
        assert f"job {job}: jobs pruned by" in cluster.aggregator.log_text()


@pytest.mark.long
@TIERS
def test_what_is_downloaded_stays_until_it_has_arrived(tmp_path: Path, corpus: Path, tiers: int) -> None:
    config = gpt_config(
        corpus, project_name="large", max_steps=1, model_save_interval=1, gradient_accumulation_steps=1
    )
    # More than all buffers between disk and client take.
    config["transformer_config"] |= {"embedding_dim": 512, "num_heads": 4}
    with Cluster(tmp_path / "cluster", tiers=tiers, workers=1) as cluster:
        job = cluster.submit(spec_of(tmp_path, config))
        cluster.finish(job)
        size = sum(path.stat().st_size for path in cluster.checkpoint(job, 0).iterdir())
        found = cluster.stub.Checkpoint(CheckpointRequest(job=job, step=0), timeout=LIMIT_SECONDS)
        assert sum(ref.size for ref in found.files.values()) == size
        for words in ((job,), (job, "--only", "checkpoints")):
            code, _, errors = prune(cluster, *words, "--yes")
            assert code == 1 and "its checkpoint of step 0 is being read" in errors
        assert cluster.saved_steps(job) == [0, 1]
        for name, ref in found.files.items():
            pieces = open_read(cluster.channel, ReadFileRequest(job=job, sha256=ref.sha256))
            content = b"".join(piece.data for piece in pieces)
            assert content == (cluster.checkpoint(job, 0) / name).read_bytes()
        code, result, errors = prune(cluster, job, "--yes")
        assert (code, result["pruned"][0]["checkpoints"]) == (0, 2), errors
        assert_gone(cluster, job)


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "tiers", "role", "failpoint"),
    [
        ("jobs", 2, "aggregator", "aggregator.prune.begun"),
        ("jobs", 3, "aggregator", "aggregator.prune.begun"),
        ("jobs", 3, "aggregator", "aggregator.prune.deleted"),
        ("jobs", 2, "aggregator", "optimizer.prune.marked"),
        ("jobs", 3, "optimizer", "optimizer.prune.marked"),
        # Checkpoints alone are removed without a note in the queue.
        ("checkpoints", 2, "aggregator", "optimizer.prune.marked"),
        ("checkpoints", 3, "optimizer", "optimizer.prune.marked"),
    ],
)
def test_a_kill_leaves_nothing_half_removed(
    tmp_path: Path, short_spec: str, tiers: int, role: str, failpoint: str, part: str
) -> None:
    plans: Iterator[str] = iter([f"{failpoint}=kill@1"])

    def failpoints(each: str) -> str:
        return next(plans, "") if each == role else ""

    with Cluster(tmp_path / "cluster", tiers=tiers, workers=1, failpoints=failpoints) as cluster:
        job, other = cluster.submit(short_spec), cluster.submit(short_spec)
        for each in (job, other):
            cluster.finish(each)
        before = cluster.saved_steps(job)
        words = [job, "--yes"] if part == "jobs" else [job, "--yes", "--only", "checkpoints"]
        tiermesh("prune", *words, "--aggregator", cluster.to_aggregator.address, "--timeout-seconds", 3)
        serving = cluster.serving(role)
        assert serving.ended() == -9, "it was killed"
        if role == "aggregator":
            cluster.start_aggregator()
        else:
            cluster.start_optimizer()
        if part == "jobs":
            assert_gone(cluster, job)
        else:
            assert is_known(cluster, job)
            assert not list(cluster.checkpoints(job).glob(".*")) or eventually(
                lambda: not list(cluster.checkpoints(job).glob(".*")), "the end of what was marked"
            )
            assert set(cluster.saved_steps(job)) < set(before)
        assert cluster.saved_steps(other) == before and log_of(cluster, other).exists()
        cluster.finish(cluster.submit(short_spec))


@pytest.mark.long
@TIERS
def test_the_retention_applies_after_each_job_and_at_the_start(
    tmp_path: Path, short_spec: str, tiers: int
) -> None:
    limits = ("checkpoints.keep=0", "logs.keep=1", "jobs.keep=2")
    options = [word for limit in limits for word in ("--retain", limit)]
    with Cluster(
        tmp_path / "cluster",
        tiers=tiers,
        workers=1,
        heartbeat_seconds=0.25,
        aggregator_options=options,
    ) as cluster:
        first, second, third = (cluster.submit(short_spec) for _ in range(3))
        for each in (first, second, third):
            cluster.finish(each)
        eventually(lambda: cluster.saved_steps(second) == [5], "the end of older checkpoints")
        eventually(lambda: not log_of(cluster, second).exists(), "the end of the older log")
        assert log_of(cluster, third).exists()
        eventually(lambda: not is_known(cluster, first), "the end of the oldest job")
        assert_gone(cluster, first)
        assert is_known(cluster, second) and is_known(cluster, third)
        cluster.aggregator.wait_log(f"job {first}: jobs pruned by the retention")
        assert cluster.aggregator.metric("tiermesh_pruned_jobs_total") == 1
