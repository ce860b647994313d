"""Jobs whose models fail or hang, and workers that are killed: real processes."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.deadly_model import RAISED
from tests.support.cluster.harness import Cluster

MODULE = "tests.support.cluster.deadly_model"
ALLOW = ("--allow-models", MODULE)


def deadly_spec(corpus: Path, dies: str, how: str, **training: Any) -> str:
    config = gpt_config(corpus, project_name=f"deadly-{dies}-{how}", model_save_interval=1000, **training)
    config["transformer_config"] = {
        "model_type": f"{MODULE}:Deadly",
        "max_sequence_length": 32,
        "width": 32,
        "dies": dies,
        "how": how,
    }
    return spec_of(corpus.parent, config)


@pytest.mark.parametrize(
    ("dies", "how", "reason", "workers"),
    [
        pytest.param("forward", "null", "killed by SIGSEGV", 2, marks=pytest.mark.long),
        pytest.param("forward", "abort", "killed by SIGABRT", 1, marks=pytest.mark.long),
        ("forward", "exit", "exit code 0", 1),
        ("forward", "SIGKILL", "killed by SIGKILL", 2),
        pytest.param("build", "SIGBUS", "killed by SIGBUS", 1, marks=pytest.mark.long),
    ],
)
def test_a_job_that_kills_compute_processes_fails_with_the_last_reason(
    tmp_path: Path, corpus: Path, short_spec: str, dies: str, how: str, reason: str, workers: int
) -> None:
    with Cluster(tmp_path, heartbeat_seconds=0.5) as cluster:
        for _ in range(workers):
            cluster.start_worker(*ALLOW)
        job = cluster.submit(deadly_spec(corpus, dies, how))
        ended = cluster.wait(job, lambda each: each.state == jobs.FAILED, "the job's end")
        assert reason in ended.detail and "times while computing" in ended.detail
        log = tiermesh("logs", job, "--aggregator", cluster.to_aggregator.address).stdout
        assert "its compute process died" in log
        if how == "null":
            assert "in die" in log, "the stack of the crash"
        assert all(worker.process.poll() is None for worker in cluster.workers), "the daemons live"
        cluster.finish(cluster.submit(short_spec))


@pytest.mark.long
@pytest.mark.parametrize("dies", ["forward", *(n for n in ("build", "parameters", "config"))])
def test_whatever_a_model_raises_fails_its_job_alone(
    tmp_path: Path, corpus: Path, short_spec: str, dies: str
) -> None:
    """SystemExit, which ends a thread without a word, and exceptions that can't be printed among them."""
    with Cluster(tmp_path, workers=0, heartbeat_seconds=0.5) as cluster:

        def has_failed(job: str) -> bool:
            return cluster.job(job).state == jobs.FAILED

        worker = cluster.start_worker(*ALLOW)
        for how in RAISED:
            job = cluster.submit(deadly_spec(corpus, dies, how))
            eventually(partial(has_failed, job), f"the end of the job that raises {how}")
            detail = cluster.job(job).detail
            assert how in detail or how == "NoText", detail
            assert worker.process.poll() is None
        cluster.finish(cluster.submit(short_spec))


def test_kill_9_never_counts(tmp_path: Path, corpus: Path, short_spec: str) -> None:
    """A job goes on however often its worker is killed with no step between."""
    with Cluster(tmp_path, heartbeat_seconds=0.5) as cluster:
        worker = cluster.start_worker(*ALLOW)
        job = cluster.submit(deadly_spec(corpus, "forward", "hang"))
        for _ in range(5):
            eventually(lambda: _works_for(cluster, job), "a worker at work")
            worker.kill()
            assert cluster.job(job).state == jobs.RUNNING
            worker.start()
        cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)


def test_a_process_that_a_model_forks_ends_with_its_worker(tmp_path: Path, corpus: Path) -> None:
    """It inherits the worker's ports, which the worker needs when it is started again."""
    with Cluster(tmp_path, heartbeat_seconds=0.5) as cluster:
        worker = cluster.start_worker(*ALLOW)
        job = cluster.submit(deadly_spec(corpus, "build", "fork"))
        cluster.wait_step(job, 1)
        worker.kill()
        worker.start()
        worker.ready()
        cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)


def test_a_build_that_hangs_is_named_and_sigterm_ends_its_worker_at_once(
    tmp_path: Path, corpus: Path
) -> None:
    with Cluster(tmp_path, heartbeat_seconds=0.5, aggregator_options=("--timeout", "stall=70")) as cluster:
        worker = cluster.start_worker(*ALLOW)
        cluster.submit(deadly_spec(corpus, "build", "hang"))
        _wait_for_build(cluster)
        status = tiermesh("status", "--aggregator", cluster.to_aggregator.address).stdout
        assert "worker worker-1: building" in status and "to build the job" in status
        assert worker.terminate() == 0, "it stopped gracefully"


@pytest.mark.parametrize("heir", ["fifo", "socket"])
def test_a_corpus_that_became_no_file_is_refused_by_name(
    tmp_path: Path, corpus: Path, heir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.read_bytes())
    spec = spec_of(tmp_path, gpt_config(text, project_name="piped"))
    text.unlink()
    if heir == "fifo":
        os.mkfifo(text)
    else:
        monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
        socket.socket(socket.AF_UNIX).bind(text.name)
    with Cluster(tmp_path / "cluster", workers=1, heartbeat_seconds=0.5) as cluster:
        job = cluster.submit(spec)
        eventually(lambda: cluster.job(job).state == jobs.FAILED, "the refusal")
        kind = "pipe" if heir == "fifo" else "socket"
        assert f"text.txt: is a {kind}, expected a regular file" in cluster.job(job).detail
        assert cluster.workers[0].terminate() == 0, "it stopped gracefully"


def _works_for(cluster: Cluster, job: str) -> bool:
    """Return whether a worker is given work of a job."""
    return any(each.job == job and each.state == "computing" for each in cluster.status().workers)


def _wait_for_build(cluster: Cluster) -> None:
    def named() -> bool:
        return any(each.what == "to build the job" and each.seconds > 0.5 for each in cluster.status().waits)

    eventually(named, "the wait for the build")
